const BAD: () = (); // expect: "stands in"

/// The name stands in the manifest.
fn item() {}
