use proptest::prelude::*;

use super::*;
use crate::sources::asked::{Covers, SourceError};

const KINDS: [SourceKind; 5] =
    [SourceKind::Manifests, SourceKind::Kubelet, SourceKind::ApiServer, SourceKind::Runtime, SourceKind::Cgroup];

fn pod(static_pod: bool) -> PodUid {
    let text = if static_pod { "0b1d9c3e4f5a6b7c8d9e0f1a2b3c4d5e" } else { "7d0a1f1e-2b3c-4d5e-8f90-a1b2c3d4e5f6" };
    PodUid::new(text).unwrap()
}

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn asked(kind: SourceKind, covers: Covers, claim: Option<Claim>) -> Asked {
    let mut answer = Answer::new(covers, time(100));
    if let Some(claim) = claim {
        answer.insert(KnownPod { uid: pod(false), name: None, claim, since: Some(time(50)) });
    }
    Asked { name: format!("{kind:?}"), kind, outcome: Ok(answer) }
}

fn failed(kind: SourceKind) -> Asked {
    Asked { name: format!("{kind:?}"), kind, outcome: Err(SourceError::incomplete("torn")) }
}

fn verdict(asked: impl IntoIterator<Item = Asked>) -> Verdict {
    Answers { asked: asked.into_iter().collect() }.verdict(&pod(false))
}

fn said(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Yes { .. } => "Yes",
        Verdict::No { .. } => "No",
        Verdict::Unknown { .. } => "Unknown",
    }
}

#[test]
fn the_cases_that_matter() {
    use Claim::{Finished, Terminating, Wanted};
    use Covers::{Every, FromApi, Static};
    use SourceKind::{ApiServer, Cgroup, Kubelet, Manifests, Runtime};
    let cases: Vec<(&str, Vec<Asked>, &str)> = vec![
        ("nobody asked", vec![], "Unknown"),
        ("only the cgroup, empty", vec![asked(Cgroup, Every, None)], "Unknown"),
        ("only what runs", vec![asked(Cgroup, Every, None), asked(Runtime, Every, None)], "Unknown"),
        ("only the API server: a forced deletion", vec![asked(ApiServer, FromApi, None)], "Unknown"),
        ("forced deletion, and nothing runs", vec![asked(ApiServer, FromApi, None), asked(Runtime, Every, None)], "No"),
        (
            "forced deletion, and it runs on",
            vec![asked(ApiServer, FromApi, None), asked(Cgroup, Every, Some(Wanted))],
            "Yes",
        ),
        ("the kubelet alone", vec![asked(Kubelet, Every, None)], "No"),
        ("a kubelet that just started", vec![asked(Kubelet, Static, None)], "Unknown"),
        (
            "a kubelet that just started, and the API server",
            vec![asked(Kubelet, Static, None), asked(ApiServer, FromApi, None), asked(Runtime, Every, None)],
            "No",
        ),
        ("manifests", vec![asked(Manifests, Every, None)], "No"),
        ("one fails", vec![asked(Kubelet, Every, None), failed(Runtime)], "Unknown"),
        ("one fails, another wants it", vec![asked(Kubelet, Every, Some(Wanted)), failed(Runtime)], "Yes"),
        ("the kubelet is taking it down", vec![asked(Kubelet, Every, Some(Terminating))], "Yes"),
        ("being deleted, nobody on the node asked", vec![asked(ApiServer, FromApi, Some(Terminating))], "Yes"),
        (
            "being deleted, and the kubelet has it no more",
            vec![asked(ApiServer, FromApi, Some(Terminating)), asked(Kubelet, Every, None)],
            "No",
        ),
        (
            "being deleted, and the kubelet failed",
            vec![asked(ApiServer, FromApi, Some(Terminating)), failed(Kubelet)],
            "Yes",
        ),
        (
            "being deleted, says the API server; its cgroup is empty",
            vec![asked(ApiServer, FromApi, Some(Terminating)), asked(Cgroup, Every, None)],
            "Yes",
        ),
        ("finished, says the kubelet", vec![asked(Kubelet, Every, Some(Finished))], "No"),
        ("finished, says only the API server", vec![asked(ApiServer, FromApi, Some(Finished))], "Unknown"),
        (
            "finished, and a container runs",
            vec![asked(ApiServer, FromApi, Some(Finished)), asked(Runtime, Every, Some(Wanted))],
            "Yes",
        ),
    ];
    for (what, asked, expected) in cases {
        let verdict = verdict(asked);
        assert_eq!(said(&verdict), expected, "{what}: {verdict:?}");
    }
}

#[test]
fn a_static_pod_is_not_gone_because_the_api_server_has_no_mirror_of_it() {
    let answers = Answers {
        asked: vec![
            asked(SourceKind::ApiServer, Covers::FromApi, None),
            asked(SourceKind::Runtime, Covers::Every, None),
        ],
    };
    assert_eq!(said(&answers.verdict(&pod(true))), "Unknown");
    assert_eq!(said(&answers.verdict(&pod(false))), "No");
}

#[test]
fn the_evidence_is_as_old_as_the_oldest_answer() {
    let mut old = asked(SourceKind::Kubelet, Covers::Every, Some(Claim::Finished));
    old.outcome.as_mut().unwrap().asked_at = time(70);
    let new = asked(SourceKind::Runtime, Covers::Every, None);
    let expected = Verdict::No { by: "Runtime, Kubelet".into(), as_of: time(70), since: Some(time(50)) };
    assert_eq!(verdict([new, old]), expected);
}

#[test]
fn of_two_claims_on_one_pod_the_stronger_stays() {
    let mut answer = Answer::new(Covers::Every, time(1));
    for claim in [Claim::Finished, Claim::Wanted, Claim::Terminating] {
        answer.insert(KnownPod { uid: pod(false), name: None, claim, since: None });
    }
    assert_eq!(answer.get(&pod(false)).unwrap().claim, Claim::Wanted);
}

#[test]
fn a_device_without_users_may_be_for_a_pod_that_does_not_run_yet() {
    let listed = || asked(SourceKind::Kubelet, Covers::Every, Some(Claim::Wanted));
    let waits = Answers { asked: vec![listed(), asked(SourceKind::Runtime, Covers::Every, None)] };
    assert!(waits.might_want_a_device().is_some());
    let runs = Answers { asked: vec![listed(), asked(SourceKind::Runtime, Covers::Every, Some(Claim::Wanted))] };
    assert_eq!(runs.might_want_a_device(), None);
    let finished = Answers { asked: vec![asked(SourceKind::Kubelet, Covers::Every, Some(Claim::Finished))] };
    assert_eq!(finished.might_want_a_device(), None);
}

fn some_asked() -> impl Strategy<Value = Asked> {
    let claim = proptest::option::of(prop_oneof![Just(Claim::Wanted), Just(Claim::Terminating), Just(Claim::Finished)]);
    let covers = prop_oneof![Just(Covers::Every), Just(Covers::FromApi), Just(Covers::Static)];
    (0..KINDS.len(), covers, claim, proptest::bool::weighted(0.2)).prop_map(|(kind, covers, claim, fails)| {
        if fails { failed(KINDS[kind]) } else { asked(KINDS[kind], covers, claim) }
    })
}

fn some_answers() -> impl Strategy<Value = Vec<Asked>> {
    proptest::collection::vec(some_asked(), 0..6)
}

/// Stated by itself, without looking at how the verdict is reached.
fn check(asked: &[Asked], verdict: &Verdict, uid: &PodUid) {
    let claim = |a: &Asked| a.outcome.as_ref().ok().and_then(|answer| answer.get(uid)).map(|known| known.claim);
    match verdict {
        Verdict::Yes { .. } => {
            assert!(asked.iter().any(|a| matches!(claim(a), Some(Claim::Wanted | Claim::Terminating))));
        }
        Verdict::No { as_of, .. } => {
            assert!(asked.iter().all(|a| a.outcome.is_ok()), "one failed");
            assert!(asked.iter().all(|a| claim(a) != Some(Claim::Wanted)), "one wants it");
            let kubelet = |a: &&Asked| a.kind == SourceKind::Kubelet;
            assert!(asked.iter().filter(kubelet).all(|a| claim(a) != Some(Claim::Terminating)), "the kubelet has it");
            assert!(asked.iter().any(|a| a.kind.is_authority()), "nobody knows what is to be here");
            assert!(
                asked.iter().any(|a| a.kind.sees_the_node() || a.kind == SourceKind::Manifests),
                "nobody knows what runs here"
            );
            assert!(asked.iter().any(|a| a.outcome.as_ref().unwrap().asked_at >= *as_of));
        }
        Verdict::Unknown { why } => assert!(!why.is_empty()),
    }
    if asked.iter().any(|a| claim(a) == Some(Claim::Wanted)) {
        assert!(matches!(verdict, Verdict::Yes { .. }), "a pod that one wants");
    }
}

proptest! {
    #[test]
    fn a_no_needs_all(asked in some_answers()) {
        let answers = Answers { asked };
        check(&answers.asked, &answers.verdict(&pod(false)), &pod(false));
        check(&answers.asked, &answers.verdict(&pod(true)), &pod(true));
    }

    #[test]
    fn a_source_that_fails_never_makes_a_no(mut asked in some_answers(), kind in 0..KINDS.len()) {
        asked.push(failed(KINDS[kind]));
        prop_assert_ne!(said(&verdict(asked)), "No");
    }

    #[test]
    fn one_more_that_wants_it_makes_a_yes(mut asked in some_answers(), kind in 0..KINDS.len()) {
        asked.push(super::tests::asked(KINDS[kind], Covers::Every, Some(Claim::Wanted)));
        prop_assert_eq!(said(&verdict(asked)), "Yes");
    }

    #[test]
    fn the_order_of_the_sources_does_not_matter(mut asked in some_answers()) {
        let first = Answers { asked: std::mem::take(&mut asked) };
        let word = said(&first.verdict(&pod(false)));
        let mut turned = first.asked;
        turned.reverse();
        prop_assert_eq!(said(&verdict(turned)), word);
    }
}
