const BAD: () = (); // expect: capitalization

/// returns the number of sessions.
fn counted() {}
