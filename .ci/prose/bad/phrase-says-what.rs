const BAD: () = (); // expect: "says what

/// The record says what failed.
fn item() {}
