const BAD: () = (); // expect: "how many may

/// The setting names how many may run.
fn item() {}
