//! Top-level fields of a record that this version does not know.

use std::borrow::Cow;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::Verbatim;

/// Fields that a later minor release wrote, in their order, as they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extra(Vec<(String, Verbatim)>);

impl Extra {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The fields.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Verbatim)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Appends them, each with a comma before it.
    pub(super) fn write_fields(&self, bytes: &mut Vec<u8>) {
        for (name, value) in &self.0 {
            bytes.push(b',');
            serde_json::to_writer(&mut *bytes, name).expect("a string, to memory");
            bytes.push(b':');
            bytes.extend_from_slice(value.get().as_bytes());
        }
    }
}

/// The fields around every record's own.
const ENVELOPE: [&str; 3] = ["apiVersion", "kind", "checksum"];

/// A deserializer that hands a struct the fields which it names, and puts all others into an [`Extra`].
///
/// serde's own `flatten` would do so too, but reads every value into an intermediate form first: slow, and
/// [`Verbatim`] could not be told from it.
pub(super) struct KeepUnknown<'e, D> {
    inner: D,
    extra: &'e mut Extra,
}

impl<'e, D> KeepUnknown<'e, D> {
    pub(super) fn new(inner: D, extra: &'e mut Extra) -> Self {
        Self { inner, extra }
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for KeepUnknown<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.inner.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.inner.deserialize_map(Keep { visitor, known: fields, extra: self.extra })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct Keep<'e, V> {
    visitor: V,
    known: &'static [&'static str],
    extra: &'e mut Extra,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Keep<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Known { map, fields: self.known, extra: self.extra })
    }
}

struct Known<'e, A> {
    map: A,
    fields: &'static [&'static str],
    extra: &'e mut Extra,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Known<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(Name(name)) = self.map.next_key::<Name<'de>>()? {
            if self.fields.contains(&name.as_ref()) {
                return seed.deserialize(serde::de::value::CowStrDeserializer::new(name)).map(Some);
            }
            if ENVELOPE.contains(&name.as_ref()) {
                self.map.next_value::<IgnoredAny>()?;
            } else {
                let value = self.map.next_value::<Verbatim>()?;
                self.extra.0.push((name.into_owned(), value));
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// A field name, borrowed where the text has no escapes.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
