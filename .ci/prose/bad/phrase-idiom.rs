const BAD: () = (); // expect: an idiom

/// The request is in vain.
fn item() {}
