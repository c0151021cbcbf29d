const BAD: () = (); // expect: "goes on

/// The session goes on.
fn item() {}
