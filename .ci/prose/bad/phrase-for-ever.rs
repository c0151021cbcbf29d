const BAD: () = (); // expect: "for ever"

/// A wait lasts for ever.
fn item() {}
