use std::collections::BTreeSet;

use super::*;

/// Calls `see` for each value of the document, with its place.
fn visit(place: &str, value: &Value, see: &mut impl FnMut(&str, &Value)) {
    see(place, value);
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| visit(&format!("{place}/{}", name.replace('/', "~1")), value, see));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| visit(&format!("{place}/{index}"), value, see));
        }
        _ => {}
    }
}

fn described() -> Value {
    document(|_| "owner")
}

#[test]
fn each_reference_has_its_target() {
    let document = described();
    let mut count = 0;
    visit("", &document, &mut |place, value| {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            let target = reference.strip_prefix('#').expect("the reference stays in the document");
            assert!(document.pointer(target).is_some(), "{place}: {reference} has no target");
            count += 1;
        }
    });
    assert!(count > 500, "{count} references");
}

#[test]
fn each_schema_is_used_and_has_a_name_of_its_own() {
    let document = described();
    let mut used = BTreeSet::new();
    visit("", &document, &mut |_, value| {
        used.extend(value.get("$ref").and_then(Value::as_str).map(str::to_owned));
    });
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(used.contains(&format!("#/components/schemas/{name}")), "{name} is used nowhere");
        // schemars numbers the types that have one name.
        let is_numbered = name.ends_with(|last: char| last.is_ascii_digit());
        assert!(!is_numbered, "{name}: another type has the name; rename one in its schema: schemars(rename = …)");
    }
}

#[test]
fn an_enum_with_the_value_unknown_is_extensible() {
    visit("", &described(), &mut |place, value| {
        let values = value.get("enum").and_then(Value::as_array);
        let is_fallback = values.is_some_and(|values| values.contains(&json!("unknown")));
        let is_extensible = value["x-extensible-enum"] == true;
        assert!(!is_fallback || is_extensible, "{place}: the variant's doc comment needs \"newer than this reader.\"");
    });
}

#[test]
fn each_code_belongs_to_a_route_and_each_route_has_codes() {
    let mut found: BTreeSet<String> = of_no_route().iter().map(|code| code.as_str()).collect();
    for route in Route::ALL {
        let codes = codes(*route);
        assert!(codes.len() >= 8, "{route}: {codes:?}");
        found.extend(codes.iter().map(|code| code.as_str()));
    }
    for code in Code::ALL {
        assert!(found.contains(&code.as_str()), "no route answers with {}; see openapi/codes.rs", code.as_str());
    }
}

#[test]
fn operations_have_names_of_their_own() {
    let document = described();
    let mut names = BTreeSet::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            assert!(names.insert(operation["operationId"].as_str().unwrap()), "{operation}");
        }
    }
    assert_eq!(names.len(), Route::ALL.len());
}

#[test]
fn a_size_is_a_number_in_answers_and_may_be_a_text_in_bodies() {
    let document = described();
    let memory = |name: &str| &document["components"]["schemas"][name]["properties"]["memory"];
    assert!(memory("SessionLimits").to_string().contains("integer"));
    assert!(!memory("SessionLimits").to_string().contains("string"), "{}", memory("SessionLimits"));
    assert!(memory("SessionLimitsInput").to_string().contains("string"), "{}", memory("SessionLimitsInput"));
}

#[test]
fn keys_are_sorted_and_a_description_has_no_line_breaks_of_the_source() {
    visit("", &described(), &mut |place, value| {
        let keys: Vec<&String> = value.as_object().into_iter().flat_map(Map::keys).collect();
        assert!(keys.is_sorted(), "{place}");
        let description = value.get("description").and_then(Value::as_str).unwrap_or_default();
        let is_list = place.contains("/responses/");
        assert!(is_list || !description.replace("\n\n", "").contains('\n'), "{place}: {description:?}");
    });
}
