//! Persistent volumes change while they are used: they grow, and get labels and annotations. Their records follow.
//!
//! Nothing on the node tells of such a change, and a watch would send every node each change of the whole cluster's volumes. So
//! they are asked for when the agent looks anyway, each at most every [`EVERY`], and all of them at its start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use refloat_record::{Record, Verbatim};

use super::enrich::{ObjectsError, WholeObjects};

/// How often one volume is asked for at most.
const EVERY: Duration = Duration::from_secs(600);
/// How many are asked for in one look, so that none takes long.
const A_LOOK: usize = 64;

/// When each volume was asked for, by name.
#[derive(Debug, Default)]
pub(super) struct Current(BTreeMap<String, Instant>);

impl Current {
    /// Brings the volumes in these records up to date, as far as it is their turn. What is mounted does not change by that:
    /// mount options and the rest of the records stay.
    pub(super) fn refresh(
        &mut self,
        records: &mut [Record],
        objects: &mut dyn WholeObjects,
        now: Instant,
    ) -> Result<(), ObjectsError> {
        let mut followed: Vec<(Identity, &mut Verbatim)> = records
            .iter_mut()
            .filter_map(|record| match record {
                Record::PodVolume(r) if r.lost.is_empty() => r.persistent_volume.as_mut(),
                Record::DeviceMount(r) => r.persistent_volume.as_mut(),
                Record::PodVolume(_) | Record::PodCheckpoint(_) | Record::Driver(_) => None,
            })
            .filter_map(|volume| Some((identity(volume)?, volume)))
            .collect();
        let used: BTreeSet<String> = followed.iter().map(|((name, _), _)| name.clone()).collect();
        self.0.retain(|name, _| used.contains(name));
        let due = |name: &&String| self.0.get(*name).is_none_or(|at| now.saturating_duration_since(*at) >= EVERY);
        let mut changed = BTreeMap::new();
        let mut asked = Ok(());
        for name in used.iter().filter(due).take(A_LOOK).cloned().collect::<Vec<_>>() {
            match objects.persistent_volume(&name) {
                // One that is gone stays as it was known, and another one of the same name is not this one.
                Ok(found) => changed.extend(found.and_then(|found| Some((identity(&found)?, found)))),
                Err(error) => {
                    asked = Err(error);
                    break;
                }
            }
            self.0.insert(name, now);
        }
        for (identity, volume) in &mut followed {
            if let Some(new) = changed.get(identity) {
                volume.clone_from(new);
            }
        }
        asked
    }
}

/// Name and UID of a volume.
type Identity = (String, Option<String>);

fn identity(volume: &Verbatim) -> Option<Identity> {
    #[derive(serde::Deserialize)]
    struct Whole {
        metadata: Metadata,
    }
    #[derive(serde::Deserialize)]
    struct Metadata {
        name: String,
        uid: Option<String>,
    }
    let Whole { metadata: Metadata { name, uid } } = volume.parse().ok()?;
    Some((name, uid))
}

#[cfg(test)]
mod tests {
    use refloat_record::PodVolume;
    use serde_json::json;

    use super::*;
    use crate::testing::{BOOT, device_record, volume_record};

    /// A volume that can be changed.
    struct Server {
        volumes: BTreeMap<String, Verbatim>,
        asked: usize,
    }

    impl WholeObjects for Server {
        fn pods(&mut self) -> Result<Vec<Verbatim>, ObjectsError> {
            unreachable!("only volumes are asked for")
        }

        fn claim(&mut self, _: &str, _: &str) -> Result<Option<Verbatim>, ObjectsError> {
            unreachable!("only volumes are asked for")
        }

        fn persistent_volume(&mut self, name: &str) -> Result<Option<Verbatim>, ObjectsError> {
            self.asked += 1;
            match self.volumes.get(name) {
                Some(volume) if volume.get() == "null" => {
                    Err(ObjectsError { what: name.into(), source: "away".into() })
                }
                found => Ok(found.cloned()),
            }
        }
    }

    fn pv(uid: &str, size: &str) -> Verbatim {
        Verbatim::from_value(&json!({"metadata": {"name": "pv", "uid": uid}, "spec": {"capacity": {"storage": size}}}))
    }

    #[test]
    fn a_volume_that_changes_is_followed_at_its_turn_and_another_one_is_not() {
        let volume = PodVolume {
            persistent_volume: Some(pv("a", "1Gi")),
            ..volume_record("u1", "kubernetes.io/csi", "pv", BOOT)
        };
        let mut device = device_record("pv", BOOT);
        device.persistent_volume = Some(pv("a", "1Gi"));
        let other = PodVolume {
            persistent_volume: Some(pv("a", "1Gi")),
            ..volume_record("u2", "kubernetes.io/csi", "pv", BOOT)
        };
        let mut records = vec![Record::PodVolume(volume), Record::PodVolume(other), Record::DeviceMount(device)];
        let all = |records: &[Record], wanted: &Verbatim| {
            records.iter().all(|record| match record {
                Record::PodVolume(r) => r.persistent_volume.as_ref() == Some(wanted),
                Record::DeviceMount(r) => r.persistent_volume.as_ref() == Some(wanted),
                _ => false,
            })
        };
        let mut server = Server { volumes: BTreeMap::from([("pv".into(), pv("a", "2Gi"))]), asked: 0 };
        let (mut current, start) = (Current::default(), Instant::now());
        current.refresh(&mut records, &mut server, start).unwrap();
        assert!(all(&records, &pv("a", "2Gi")), "{records:?}");
        // Not again at once.
        server.volumes.insert("pv".into(), pv("a", "3Gi"));
        current.refresh(&mut records, &mut server, start + EVERY / 2).unwrap();
        assert!(server.asked == 1 && all(&records, &pv("a", "2Gi")));
        current.refresh(&mut records, &mut server, start + EVERY).unwrap();
        assert!(server.asked == 2 && all(&records, &pv("a", "3Gi")));
        // Away, gone, and another one that is called so.
        for other in [Some(Verbatim::from_value(&json!(null))), None, Some(pv("b", "4Gi"))] {
            server.volumes.clear();
            let away = other.as_ref().is_some_and(|other| other.get() == "null");
            server.volumes.extend(other.map(|other| ("pv".into(), other)));
            let answer = Current::default().refresh(&mut records, &mut server, start);
            assert!(answer.is_err() == away && all(&records, &pv("a", "3Gi")), "{records:?}");
        }
        // What is not known whole is not asked for here.
        records.truncate(1);
        let Record::PodVolume(volume) = &mut records[0] else { unreachable!() };
        volume.lost = vec!["volume".into()];
        let asked = server.asked;
        Current::default().refresh(&mut records, &mut server, start).unwrap();
        assert_eq!(server.asked, asked);
    }
}
