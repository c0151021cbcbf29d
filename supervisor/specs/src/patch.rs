//! The difference of two JSON documents as a merge patch (RFC 7396).

use serde_json::{Map, Value};

/// Returns the patch that makes `before` equal to `after`.
pub fn between(before: &Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    let mut patch = Map::new();
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in after {
        match (before.get(name), value) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                patch.insert(name.clone(), Value::Object(between(old, new)));
            }
            _ => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_difference_of_two_documents_is_a_merge_patch() {
        let before = json!({ "a": 1, "b": { "c": 1, "d": 2 }, "e": [1], "g": {} });
        let after = json!({ "a": 1, "b": { "c": 3 }, "e": [2], "f": { "h": 1 }, "g": {} });
        let (Value::Object(before), Value::Object(after)) = (before, after) else { unreachable!() };
        let wanted = json!({ "b": { "c": 3, "d": null }, "e": [2], "f": { "h": 1 } });
        assert_eq!(Value::Object(between(&before, &after)), wanted);
    }
}
