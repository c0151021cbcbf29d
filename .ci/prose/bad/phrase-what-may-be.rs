const BAD: () = (); // expect: "what may

/// The grant lists what may be in the environment.
fn item() {}
