const BAD: () = (); // expect: "somebody"

/// The session waits until somebody answers.
fn item() {}
