const BAD: () = (); // expect: "what it is

/// The record names what it is in the journal.
fn item() {}
