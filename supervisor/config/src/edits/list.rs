//! Adds a name to a list in a TOML document, and keeps comments and layout.

use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, RawString, Table, TableLike, Value};

/// Returns the list at a key, and creates the list if it is missing. Returns `None` if the key has another kind of
/// value. A part `[N]` is an element of an array.
pub(super) fn list<'a>(document: &'a mut DocumentMut, key: &[String], inherited: &[String]) -> Option<&'a mut Array> {
    let (last, around) = key.split_last()?;
    let mut place = Cursor::Table(document.as_table_mut());
    for part in around {
        place = place.below(part)?;
    }
    let Cursor::Table(table) = place else { return None };
    if !table.contains_key(last) {
        table.insert(last, Item::Value(Value::Array(inherited.iter().collect())));
    }
    let item = table.get_mut(last)?;
    // A setting may be a single name instead of a list.
    if let Some(name) = item.as_str().map(str::to_owned) {
        *item = Item::Value(Value::Array(Array::from_iter([name])));
    }
    item.as_array_mut().filter(|list| list.iter().all(Value::is_str))
}

/// Current position in the document.
enum Cursor<'a> {
    Table(&'a mut dyn TableLike),
    Values(&'a mut Array),
    Tables(&'a mut ArrayOfTables),
}

impl<'a> Cursor<'a> {
    fn below(self, part: &str) -> Option<Cursor<'a>> {
        let index =
            part.strip_prefix('[').and_then(|part| part.strip_suffix(']')).and_then(|part| part.parse::<usize>().ok());
        match (self, index) {
            (Self::Values(values), Some(index)) => Some(Self::Table(values.get_mut(index)?.as_inline_table_mut()?)),
            (Self::Tables(tables), Some(index)) => Some(Self::Table(tables.get_mut(index)?)),
            (Self::Table(table), _) => {
                if !table.contains_key(part) {
                    let mut new = Table::new();
                    // Only the innermost table gets a header.
                    new.set_implicit(true);
                    table.insert(part, Item::Table(new));
                }
                match table.get_mut(part)? {
                    Item::ArrayOfTables(tables) => Some(Self::Tables(tables)),
                    Item::Value(Value::Array(values)) => Some(Self::Values(values)),
                    item => Some(Self::Table(item.as_table_like_mut()?)),
                }
            }
            _ => None,
        }
    }
}

/// Adds a name to a list in the list's layout. Returns whether the name was missing.
pub(super) fn add(list: &mut Array, name: &str) -> bool {
    if list.iter().any(|known| known.as_str() == Some(name)) {
        return false;
    }
    let text = |raw: Option<&RawString>| raw.and_then(RawString::as_str).unwrap_or_default().to_owned();
    let before = match list.iter().last() {
        Some(final_item) => text(final_item.decor().prefix()),
        // In an empty list over several lines, the first element also gets its own line.
        None if text(Some(list.trailing())).contains('\n') => "\n    ".to_owned(),
        None => String::new(),
    };
    // In a list with one element a line, the new element gets its own line. Comments stay with the elements that they
    // describe.
    let Some(newline) = before.rfind('\n') else {
        list.push(name);
        return true;
    };
    let indent = before[newline..].to_owned();
    let end = list.len().saturating_sub(1);
    let behind = if list.trailing_comma() {
        text(Some(list.trailing()))
    } else {
        let behind = list.get(end).map(|final_item| text(final_item.decor().suffix())).unwrap_or_default();
        behind + &text(Some(list.trailing()))
    };
    let rest = behind.rfind('\n').map_or("\n", |newline| &behind[newline..]).to_owned();
    let comment = behind[..behind.rfind('\n').unwrap_or(0)].to_owned();
    if let Some(before) = list.get_mut(end) {
        before.decor_mut().set_suffix("");
    }
    let mut value = Value::from(name);
    value.decor_mut().set_prefix(format!("{comment}{indent}"));
    list.push_formatted(value);
    list.set_trailing_comma(true);
    list.set_trailing(rest);
    true
}
