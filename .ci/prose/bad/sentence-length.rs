const BAD: () = (); // expect: more than 25

/// Counts.
/// This sentence has one word after another word after another word after another word
/// after another word after another word after another word after another word after another word.
fn counted() {}
