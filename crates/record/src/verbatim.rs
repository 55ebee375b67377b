//! JSON kept exactly as it came.

use std::sync::Arc;

use serde_json::value::RawValue;

/// One JSON value as the text that it was given as: field order, unknown fields and number formats included.
///
/// Cloning is cheap. The text is known to be well-formed JSON; what it means is looked at only by who needs it,
/// with [`Verbatim::parse`].
#[derive(Debug, Clone)]
pub struct Verbatim(Arc<RawValue>);

impl Verbatim {
    /// Keeps a value.
    pub fn from_value(value: &serde_json::Value) -> Self {
        Self::of(value).expect("a Value prints as well-formed JSON")
    }

    /// Keeps what something is as JSON.
    ///
    /// # Errors
    /// A map with keys that are no texts, or what the type's own `Serialize` refuses.
    pub fn of(value: &impl serde::Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self(serde_json::value::to_raw_value(value)?.into()))
    }

    /// Keeps a text, if it is one well-formed JSON value.
    pub fn from_text(text: String) -> Result<Self, serde_json::Error> {
        Ok(Self(RawValue::from_string(text)?.into()))
    }

    /// The JSON text.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// The value as a type, for example a Kubernetes object or [`serde_json::Value`].
    pub fn parse<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.get())
    }
}

/// Equal if the texts are the same.
impl PartialEq for Verbatim {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Verbatim {}

impl serde::Serialize for Verbatim {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> serde::Deserialize<'de> for Verbatim {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(raw.into()))
    }
}
