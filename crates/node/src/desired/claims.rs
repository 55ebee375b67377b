//! From a claim to its volume.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Volume};
use refloat_record::{ClaimRef, PodVolume};
use refloat_volume::{Lookup, Object, Objects as _, Problem};

use crate::sources::manifests::ManifestObjects;

/// The name of the claim that a volume is bound through, and whether the volume is read-only by it.
///
/// # Source
/// `ephemeral.VolumeClaimName` of `k8s.io/component-helpers/storage/ephemeral`: `<pod>-<volume>`.
pub(crate) fn claim_of(pod: &str, volume: &Volume) -> Option<(String, bool)> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some((claim.claim_name.clone(), claim.read_only.unwrap_or(false)));
    }
    volume.ephemeral.as_ref().map(|_| (format!("{pod}-{}", volume.name), false))
}

/// The volume that a claim is bound to, and the claim as the record names it.
///
/// # Source
/// `getPVCExtractPV` and `createVolumeSpec` of the kubelet's desired state populator. Bound is a claim whose
/// `spec.volumeName` is set. Manifests have no binding controller, so a claim is also bound to the one volume whose
/// `spec.claimRef` names it, and a volume without a `claimRef` to the one claim that names it.
pub(super) fn bound(
    objects: &ManifestObjects,
    namespace: &str,
    name: &str,
) -> Result<(Object<PersistentVolume>, ClaimRef), Problem> {
    let shown = format!("claim {namespace}/{name}");
    let unknown = |why: String| {
        let hint = "what is mounted stays; correct the manifests";
        Problem::new("ClaimUnknown", format!("{shown} cannot be looked up: {why}"), hint)
    };
    let claim = match objects.claim(namespace, name) {
        Lookup::Found(claim) => claim,
        Lookup::Absent => {
            let hint = "create the PersistentVolumeClaim";
            return Err(Problem::new("ClaimMissing", format!("there is no {shown}"), hint));
        }
        Lookup::Unknown(why) => return Err(unknown(why)),
    };
    let volume_name = claim.typed.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|n| !n.is_empty());
    let volume = match volume_name {
        Some(volume) => match objects.persistent_volume(volume) {
            Lookup::Found(volume) => volume,
            Lookup::Absent => {
                let message = format!("{shown} is bound to PersistentVolume {volume}, and there is none");
                return Err(Problem::new("PersistentVolumeMissing", message, "create the PersistentVolume"));
            }
            Lookup::Unknown(why) => return Err(unknown(why)),
        },
        None => by_claim_ref(objects, &claim, namespace, name, &shown, unknown)?,
    };
    check(objects, &volume, &claim, namespace, name, &shown)?;
    let claim = ClaimRef { namespace: namespace.into(), name: name.into(), uid: claim.typed.metadata.uid.clone() };
    Ok(((*volume).clone(), claim))
}

fn volume_name(volume: &Object<PersistentVolume>) -> &str {
    volume.typed.metadata.name.as_deref().unwrap_or("")
}

fn claim_ref(volume: &Object<PersistentVolume>) -> Option<&ObjectReference> {
    volume.typed.spec.as_ref()?.claim_ref.as_ref()
}

fn names(reference: &ObjectReference, namespace: &str, name: &str) -> bool {
    reference.name.as_deref() == Some(name) && reference.namespace.as_deref().unwrap_or("default") == namespace
}

/// The one volume that says that it is this claim's.
fn by_claim_ref(
    objects: &ManifestObjects,
    claim: &Object<PersistentVolumeClaim>,
    namespace: &str,
    name: &str,
    shown: &str,
    unknown: impl Fn(String) -> Problem,
) -> Result<Arc<Object<PersistentVolume>>, Problem> {
    // While something cannot be read, another volume may name the claim as well.
    if let Some(why) = objects.incomplete() {
        return Err(unknown(why.clone()));
    }
    let uid_fits = |r: &ObjectReference| match (&r.uid, &claim.typed.metadata.uid) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    };
    let mut fitting = objects
        .all_persistent_volumes()
        .filter(|v| claim_ref(v).is_some_and(|r| names(r, namespace, name) && uid_fits(r)));
    match (fitting.next(), fitting.next()) {
        (Some(volume), None) => Ok(volume.clone()),
        (None, _) => {
            let message = format!("{shown} is not bound: it has no spec.volumeName, and no volume's claimRef names it");
            Err(Problem::new("ClaimNotBound", message, "set spec.volumeName, or the volume's spec.claimRef"))
        }
        (Some(one), Some(other)) => {
            let (one, other) = (volume_name(one), volume_name(other));
            let message = format!("{shown} is named by the claimRef of PersistentVolume {one} and of {other}");
            Err(Problem::new("ClaimAmbiguous", message, "set the claim's spec.volumeName"))
        }
    }
}

/// Whether the volume is this claim's and no other's.
fn check(
    objects: &ManifestObjects,
    volume: &Object<PersistentVolume>,
    claim: &Object<PersistentVolumeClaim>,
    namespace: &str,
    name: &str,
    shown: &str,
) -> Result<(), Problem> {
    let pv = volume_name(volume);
    let other = |message: String| Err(Problem::new("ClaimNotBound", message, "bind the claim to a volume of its own"));
    match claim_ref(volume) {
        Some(reference) if !names(reference, namespace, name) => {
            let namespace = reference.namespace.as_deref().unwrap_or("default");
            let theirs = reference.name.as_deref().unwrap_or("");
            other(format!("{shown} names PersistentVolume {pv}, which is bound to claim {namespace}/{theirs}"))
        }
        Some(reference) => match (&reference.uid, &claim.typed.metadata.uid) {
            (Some(theirs), Some(ours)) if theirs != ours => {
                other(format!("PersistentVolume {pv} is bound to another {shown}, with uid {theirs} and not {ours}"))
            }
            _ => Ok(()),
        },
        None => {
            let same = |c: &&Arc<Object<PersistentVolumeClaim>>| {
                c.typed.spec.as_ref().and_then(|s| s.volume_name.as_deref()) == Some(pv)
            };
            match objects.all_claims().filter(same).count() {
                0 | 1 => Ok(()),
                _ => other(format!("{shown} and another claim name PersistentVolume {pv}, whose claimRef is not set")),
            }
        }
    }
}

/// The volume as the pod's record has it, for a pod that is only known from its checkpoint.
pub(super) fn recorded(records: &[&PodVolume], volume: &str) -> Option<(Object<PersistentVolume>, ClaimRef)> {
    let record = records.iter().find(|r| r.volume_names.iter().any(|n| n.as_str() == volume))?;
    let object = Object::new(record.persistent_volume.clone()?).ok()?;
    Some((object, record.claim.clone()?))
}

/// The volume's mount options.
///
/// # Source
/// `MountOptionFromSpec` of `pkg/volume/util`: the old annotation, where it is set, replaces the field.
pub(crate) fn mount_options(volume: &PersistentVolume) -> Vec<String> {
    let annotation =
        volume.metadata.annotations.as_ref().and_then(|a| a.get("volume.beta.kubernetes.io/mount-options"));
    match annotation {
        Some(text) => text.split(',').map(str::trim).filter(|o| !o.is_empty()).map(str::to_owned).collect(),
        None => volume.spec.as_ref().and_then(|s| s.mount_options.clone()).unwrap_or_default(),
    }
}
