const BAD: () = (); // expect: "whom"

/// The daemon knows for whom the session runs.
fn item() {}
