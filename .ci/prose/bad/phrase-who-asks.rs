const BAD: () = (); // expect: "who asks"

/// The answer depends on who asks.
fn item() {}
