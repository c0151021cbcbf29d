const BAD: () = (); // expect: "one that

/// One that ends by itself.
fn item() {}
