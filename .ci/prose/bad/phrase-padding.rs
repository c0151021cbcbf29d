const BAD: () = (); // expect: padding

/// The keeper is a robust process.
fn item() {}
