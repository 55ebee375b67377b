//! What a provider answers.

use refloat_csi::Secrets;
use refloat_record::Verbatim;
use serde_json::{Map, Value};

use super::{API_VERSION, ProviderError, ProviderRequest};
use crate::secret_text::has_secret;
use crate::tool::{json_object, shortened};

/// The largest `providerInfo`, in bytes of JSON: it is in a record, and is read at every start.
pub(crate) const MAX_INFO: usize = 16 << 10;

/// An answer that is one JSON object with a status.
#[derive(Debug)]
pub(super) struct Parsed {
    version: String,
    status: Status,
    message: String,
    info: Option<Map<String, Value>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Success,
    Failure,
    NotSupported,
}

impl Parsed {
    /// Reads what it printed. The error is what it did instead, without a byte of it.
    pub(super) fn of(printed: &[u8], code: Option<i32>) -> Result<Self, String> {
        let ended = match code {
            Some(0) => String::new(),
            Some(code) => format!(", and exit code {code}"),
            None => ", and was ended by a signal".to_owned(),
        };
        let mut whole = json_object(printed).map_err(|what| format!("{what}{ended}"))?;
        let text = |name: &str| whole.get(name).and_then(Value::as_str).map(str::to_owned);
        let version = text("apiVersion").ok_or("an object without an apiVersion")?;
        let status = match text("status").as_deref() {
            Some("Success") if code == Some(0) => Status::Success,
            Some("Success") => return Err(format!("Success{ended}")),
            Some("Failure") => Status::Failure,
            Some("Not supported") => Status::NotSupported,
            Some(_) => return Err("a status that is none".into()),
            None => return Err("an object without a status".into()),
        };
        let message = text("message").unwrap_or_default();
        let info = match whole.shift_remove("providerInfo") {
            None | Some(Value::Null) => None,
            Some(Value::Object(info)) => Some(info),
            Some(_) => return Err("a providerInfo that is no object".into()),
        };
        Ok(Self { version, status, message, info })
    }

    /// What of it counts.
    pub(super) fn judge(
        self,
        provider: &str,
        request: &ProviderRequest<'_>,
    ) -> Result<Option<Verbatim>, ProviderError> {
        let call = request.call;
        let none = Secrets::default();
        let secrets = request.secrets.unwrap_or(&none);
        let provider = provider.to_owned();
        if self.version != API_VERSION {
            return Err(ProviderError::Version { provider, call, found: shortened(&secrets.hidden_in(&self.version)) });
        }
        if self.status == Status::Failure {
            return Err(ProviderError::Refused {
                provider,
                call,
                message: shortened(&secrets.hidden_in(&self.message)),
            });
        }
        let Some(info) = self.info.filter(|_| self.status == Status::Success).map(Value::Object) else {
            return Ok(None);
        };
        let verbatim = Verbatim::from_value(&info);
        let size = verbatim.get().len();
        if size > MAX_INFO {
            let what = format!("a providerInfo of {size} bytes, and {MAX_INFO} are the most that is kept");
            return Err(ProviderError::Failed { provider, call, what });
        }
        if request.secrets.is_none() {
            return Ok(None);
        }
        if has_secret(&info, secrets) {
            tracing::warn!(
                code = "ProviderInfoDropped",
                provider,
                "the provider answered with a providerInfo that holds a secret of the volume; it is not kept"
            );
            return Ok(None);
        }
        Ok(Some(verbatim))
    }
}
