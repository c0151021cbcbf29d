const BAD: () = (); // expect: "the one

/// The daemon closes the one in the queue.
fn item() {}
