const BAD: () = (); // expect: more than 25

fn counted() {
    // This sentence has one word after another word after another word after another word
    // after another word after another word after another word after another word after another word.
}
