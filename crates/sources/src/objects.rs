//! Pods, claims and persistent volumes whole, from kubelet and API server.

use std::time::{Duration, Instant};

use refloat_node::SourceError;
use refloat_node::agent::{ObjectsError, WholeObjects};
use refloat_record::Verbatim;
use serde::Deserialize;

use crate::{ApiServer, Kubelet, web};

/// Kubelet and API server, asked for whole objects. The kubelet knows pods alone.
#[derive(Debug)]
pub struct Whole {
    kubelet: Option<Kubelet>,
    api_server: Option<ApiServer>,
    patience: Duration,
}

impl Whole {
    /// Asks these, and waits for neither longer than `patience`.
    pub fn new(kubelet: Option<Kubelet>, api_server: Option<ApiServer>, patience: Duration) -> Self {
        Self { kubelet, api_server, patience }
    }

    fn object(&self, what: &str, path: &str) -> Result<Option<Verbatim>, ObjectsError> {
        let Some(api_server) = &self.api_server else { return Ok(None) };
        let text = match api_server.get(path, Instant::now() + self.patience) {
            Err(SourceError::Status { status: 404, .. }) => return Ok(None),
            answer => answer.map_err(|error| failed(what, error))?,
        };
        let text = String::from_utf8(text).map_err(|error| failed(what, error))?;
        Verbatim::from_text(text).map(Some).map_err(|error| failed(what, error))
    }
}

fn failed(what: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ObjectsError {
    ObjectsError { what: what.to_owned(), source: error.into() }
}

/// The entries of a `PodList` as they came.
fn items(text: &[u8]) -> Result<Vec<Verbatim>, serde_json::Error> {
    #[derive(Deserialize)]
    struct List {
        items: Option<Vec<Verbatim>>,
    }
    Ok(serde_json::from_slice::<List>(text)?.items.unwrap_or_default())
}

impl WholeObjects for Whole {
    fn pods(&mut self) -> Result<Vec<Verbatim>, ObjectsError> {
        let mut all = vec![];
        let mut wrong = None;
        let mut answered = false;
        let deadline = Instant::now() + self.patience;
        let lists = [
            self.kubelet.as_ref().map(|kubelet| ("the kubelet's pods", kubelet.list(deadline))),
            self.api_server.as_ref().map(|api_server| ("the API server's pods", api_server.list_whole(deadline))),
        ];
        for (what, list) in lists.into_iter().flatten() {
            let read = |text: Vec<Vec<u8>>| -> Result<Vec<Verbatim>, serde_json::Error> {
                Ok(text.iter().map(|text| items(text)).collect::<Result<Vec<_>, _>>()?.concat())
            };
            match list.map_err(|error| failed(what, error)).and_then(|text| read(text).map_err(|e| failed(what, e))) {
                Ok(pods) => {
                    answered = true;
                    all.extend(pods);
                }
                Err(error) => wrong = Some(error),
            }
        }
        match wrong {
            Some(error) if !answered => Err(error),
            _ => Ok(all),
        }
    }

    fn claim(&mut self, namespace: &str, name: &str) -> Result<Option<Verbatim>, ObjectsError> {
        let path = format!("/api/v1/namespaces/{}/persistentvolumeclaims/{}", plain(namespace)?, plain(name)?);
        self.object(&format!("claim {namespace}/{name}"), &path)
    }

    fn persistent_volume(&mut self, name: &str) -> Result<Option<Verbatim>, ObjectsError> {
        self.object(&format!("persistent volume {name}"), &format!("/api/v1/persistentvolumes/{}", plain(name)?))
    }
}

/// A name that needs no escape in an address: objects' names are DNS subdomains.
fn plain(name: &str) -> Result<&str, ObjectsError> {
    if web::is_plain(name) {
        return Ok(name);
    }
    Err(failed("an object", format!("no object can be called {name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_taken_verbatim() {
        let text = br#"{"kind":"PodList","items":[{"metadata":{"uid":"u"},"tomorrow":1.0}]}"#;
        let found = items(text).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].get().contains("\"tomorrow\":1.0"));
        assert!(items(br#"{"kind":"PodList","items":null}"#).unwrap().is_empty());
        assert!(items(b"{\"items\":[").is_err());
    }

    #[test]
    fn names_cannot_lead_elsewhere() {
        for bad in ["", ".", "..", "a/b", "a?b", "a%2fb"] {
            assert!(plain(bad).is_err(), "{bad:?}");
        }
        assert_eq!(plain("pvc-1.a").unwrap(), "pvc-1.a");
    }
}
