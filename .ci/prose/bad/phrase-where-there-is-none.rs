const BAD: () = (); // expect: "where there is

/// The daemon makes a directory where there is one below the home.
fn item() {}
