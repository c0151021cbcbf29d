const BAD: () = (); // expect: "The same …"

/// The same with a time limit.
fn item() {}
