const BAD: () = (); // expect: "told by"

/// An agent is recognised by name and told apart.
fn item() {}
