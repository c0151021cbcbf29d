//! Writes the items of a list with the key `fields`: objects that have only the named fields.
//!
//! The fields are chosen while a struct serialises itself, so the others cost nothing.

use std::fmt::Display;

use agentd_api::list::{Part, SelectedFields, SessionSummary};
use agentd_api::session::{Condition, SessionView};
use serde::ser::{Error as _, Impossible, Serialize, SerializeMap, SerializeStruct, Serializer};

/// A session in a list, with these fields alone. Absent fields are left out.
pub(super) struct SparseItem<'a> {
    pub(super) view: &'a SessionView,
    pub(super) selected: &'a SelectedFields,
}

impl Serialize for SparseItem<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { view, selected } = *self;
        let mut item = serializer.serialize_map(None)?;
        let of_view = ["generation", "parent"];
        if selected.top.iter().any(|name| !of_view.contains(name)) {
            SessionSummary::of(view).serialize(Chosen { names: &selected.top, into: &mut item })?;
        }
        if selected.top.contains(&"generation") {
            item.serialize_entry("generation", &view.generation)?;
        }
        if let Some(parent) = view.parent.as_ref().filter(|_| selected.top.contains(&"parent")) {
            item.serialize_entry("parent", parent)?;
        }
        match &selected.spec {
            Part::None => {}
            Part::All => item.serialize_entry("spec", view.spec.as_ref())?,
            Part::Named(names) => item.serialize_entry("spec", &SparsePart { whole: view.spec.as_ref(), names })?,
        }
        match (&selected.status, selected.conditions.as_slice()) {
            (Part::None, []) => {}
            (Part::All, _) => item.serialize_entry("status", &view.status)?,
            _ => item.serialize_entry("status", &SparseStatus(self))?,
        }
        item.end()
    }
}

/// A struct with these fields alone.
struct SparsePart<'a, T> {
    whole: &'a T,
    names: &'a [&'static str],
}

impl<T: Serialize> Serialize for SparsePart<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut part = serializer.serialize_map(None)?;
        self.whole.serialize(Chosen { names: self.names, into: &mut part })?;
        part.end()
    }
}

/// The status of an item with the named fields and the named conditions.
struct SparseStatus<'a>(&'a SparseItem<'a>);

impl Serialize for SparseStatus<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let SparseItem { view, selected } = self.0;
        let names = if let Part::Named(names) = &selected.status { names.as_slice() } else { &[] };
        let mut status = serializer.serialize_map(None)?;
        if !names.is_empty() {
            view.status.serialize(Chosen { names, into: &mut status })?;
        }
        if !selected.conditions.is_empty() && !names.contains(&"conditions") {
            let is_wanted = |one: &&Condition| selected.conditions.contains(&one.kind);
            let wanted: Vec<&Condition> = view.status.conditions.iter().filter(is_wanted).collect();
            status.serialize_entry("conditions", &wanted)?;
        }
        status.end()
    }
}

/// Serializer of a struct that adds the fields with these names to a map, and skips the others.
struct Chosen<'a, M> {
    names: &'a [&'static str],
    into: &'a mut M,
}

impl<M: SerializeMap> Chosen<'_, M> {
    fn refuse<T>() -> Result<T, M::Error> {
        Err(M::Error::custom("internal error: only a struct has fields"))
    }
}

impl<M: SerializeMap> SerializeStruct for Chosen<'_, M> {
    type Ok = ();
    type Error = M::Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), M::Error> {
        if self.names.contains(&name) { self.into.serialize_entry(name, value) } else { Ok(()) }
    }

    fn end(self) -> Result<(), M::Error> {
        Ok(())
    }
}

/// Defines the methods for values without fields, which are refused.
macro_rules! refused {
    ($($method:ident($($argument:ty),*);)*) => {
        $(fn $method(self, $(_: $argument),*) -> Result<(), M::Error> { Self::refuse() })*
    };
}

impl<M: SerializeMap> Serializer for Chosen<'_, M> {
    type Ok = ();
    type Error = M::Error;
    type SerializeSeq = Impossible<(), M::Error>;
    type SerializeTuple = Impossible<(), M::Error>;
    type SerializeTupleStruct = Impossible<(), M::Error>;
    type SerializeTupleVariant = Impossible<(), M::Error>;
    type SerializeMap = Impossible<(), M::Error>;
    type SerializeStruct = Self;
    type SerializeStructVariant = Impossible<(), M::Error>;

    refused! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_f32(f32);
        serialize_f64(f64);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, M::Error> {
        Ok(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<(), M::Error> {
        Self::refuse()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, _: &T) -> Result<(), M::Error> {
        Self::refuse()
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), M::Error> {
        Self::refuse()
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, M::Error> {
        Self::refuse()
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, M::Error> {
        Self::refuse()
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, M::Error> {
        Self::refuse()
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, M::Error> {
        Self::refuse()
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, M::Error> {
        Self::refuse()
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, M::Error> {
        Self::refuse()
    }

    fn collect_str<T: Display + ?Sized>(self, _: &T) -> Result<(), M::Error> {
        Self::refuse()
    }
}
