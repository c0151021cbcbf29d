const BAD: () = (); // expect: a word stands twice

/// Reads the journal of the
/// the session.
fn read() {}
