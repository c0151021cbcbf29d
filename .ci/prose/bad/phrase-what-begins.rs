const BAD: () = (); // expect: begins with a pronoun

/// What the agent gets.
fn item() {}
