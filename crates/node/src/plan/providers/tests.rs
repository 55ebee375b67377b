use std::collections::BTreeSet;

use refloat_record::{Verbatim, VolumeMode};
use refloat_volume::Plugins;
use refloat_volume::provider::Providers;

use super::*;
use crate::testing::{BOOT, boot, desired_of, world};
use crate::{Desired, PlanInput, VolumeKey, plan};

/// Providers with these names, plugins and calls.
fn providers(all: &[(&str, &str, &str)]) -> Arc<Vec<Arc<Provider>>> {
    let folder = tempfile::tempdir().unwrap();
    for (name, plugin, calls) in all {
        let text = format!(
            r#"{{"kind":"Provider","apiVersions":["provider.refloat.dev/v1"],"exec":["x"],"plugins":["{plugin}"],"calls":{calls}}}"#
        );
        std::fs::write(folder.path().join(format!("{name}.json")), text).unwrap();
    }
    let providers = Providers::new(Some(folder.path().to_owned()));
    assert!(providers.problems().is_empty(), "{:?}", providers.problems());
    providers.list()
}

const ALL: &str = r#"["setUp","mountDevice","reconnect"]"#;
const EMPTY_DIR: &str = "kubernetes.io/empty-dir";

/// u1 has its emptyDir `v` and the device `pv`; both are there.
fn there() -> (Desired, Actual) {
    let mut actual = world();
    for volume in actual.volumes.iter_mut().filter(|v| v.key.pod.as_str() == "u1") {
        volume.state = VolumeState::Mounted;
    }
    (desired_of(&["u1"]), actual)
}

fn input(list: Arc<Vec<Arc<Provider>>>) -> PlanInput {
    let mut input = PlanInput::new(&Plugins::builtin());
    input.providers.list = list;
    input
}

/// What is asked: provider, call and subject.
fn asked(desired: &Desired, actual: &Actual, input: &PlanInput) -> Vec<String> {
    let operations = plan(desired, actual, input).operations;
    let shown = |operation: &Operation| match operation {
        Operation::AskProvider { provider, call, of, .. } => Some(format!("{} {call} {of}", provider.name())),
        Operation::NoteAnswer { provider, of, .. } => Some(format!("{provider} noted {of}")),
        _ => None,
    };
    operations.iter().filter_map(shown).collect()
}

fn of_u1() -> Exclusion {
    Exclusion::Volume(VolumeKey {
        pod: refloat_record::PodUid::new("u1").unwrap(),
        spec_name: refloat_record::SpecName::new("v").unwrap(),
        plugin: refloat_record::PluginName::new(EMPTY_DIR).unwrap(),
        mode: VolumeMode::Filesystem,
    })
}

const VOLUME: &str = "volume \"v\" (kubernetes.io/empty-dir) of pod u1";

fn answer(boot_id: &str, info: Option<&str>) -> ProviderAnswer {
    let provider_info = info.map(|info| Verbatim::from_text(info.into()).unwrap());
    ProviderAnswer { boot_id: boot(boot_id), mount_id: None, provider_info }
}

fn remember(actual: &mut Actual, name: &str, said: &ProviderAnswer) {
    let volume = actual.volumes.iter_mut().find(|v| v.key.pod.as_str() == "u1" && v.record.is_some()).unwrap();
    volume.record.as_mut().unwrap().providers.insert(name.into(), said.clone());
}

#[test]
fn what_is_there_is_asked_about_by_whom_it_concerns() {
    let (desired, mut actual) = there();
    let input = input(providers(&[
        ("all", "*", ALL),
        ("checks", EMPTY_DIR, r#"["check"]"#),
        ("local", "kubernetes.io/local-volume", ALL),
        ("nfs", "kubernetes.io/nfs", ALL),
    ]));
    // Volumes of gone pods, and what has a conflict, are nobody's business any more.
    let asked = |desired: &Desired, actual: &Actual| asked(desired, actual, &input);
    let expected = [
        format!("all setUp {VOLUME}"),
        "all mountDevice device kubernetes.io/local-volume/pv".into(),
        "local mountDevice device kubernetes.io/local-volume/pv".into(),
    ];
    let found = asked(&desired, &actual);
    // One is asked about a volume at a time.
    assert_eq!(found.iter().filter(|one| one.ends_with(VOLUME)).count(), 1, "{found:?}");
    assert!(found.iter().all(|one| expected.contains(one)) && found.contains(&expected[0]), "{found:?}");
    assert!(asked(&Desired::default(), &actual).is_empty());
    for volume in &mut actual.volumes {
        volume.state = VolumeState::Uncertain;
    }
    assert!(!asked(&desired, &actual).iter().any(|one| one.ends_with(VOLUME)));
}

#[test]
fn after_a_restart_it_is_asked_once() {
    let (desired, mut actual) = there();
    let mut input = input(providers(&[("one", EMPTY_DIR, ALL)]));
    let reconnect = [format!("one reconnect {VOLUME}")];
    remember(&mut actual, "one", &answer(BOOT, Some("{}")));
    assert_eq!(asked(&desired, &actual, &input), reconnect);
    input.providers.asked.insert(("one".into(), of_u1()));
    assert!(asked(&desired, &actual, &input).is_empty());
    // Of another boot, it is another mount.
    remember(&mut actual, "one", &answer("before", Some("{}")));
    assert_eq!(asked(&desired, &actual, &input), [format!("one setUp {VOLUME}")]);
    // Who had nothing to say is not asked again.
    input.providers.asked.clear();
    remember(&mut actual, "one", &answer(BOOT, None));
    assert!(asked(&desired, &actual, &input).is_empty());
}

#[test]
fn an_answer_is_written_when_the_volume_is_free() {
    let (desired, actual) = there();
    let mut input = input(providers(&[("one", EMPTY_DIR, ALL)]));
    let id = ("one".to_owned(), of_u1());
    input.providers.answers.insert(id.clone(), answer(BOOT, Some("{}")));
    input.providers.asked.insert(id.clone());
    let planned = plan(&desired, &actual, &input).operations;
    let is_of_u1 = |key: &VolumeKey| Exclusion::Volume(key.clone()) == of_u1();
    let sets_up = planned.iter().any(|o| matches!(o, Operation::SetUp { volume, .. } if is_of_u1(&volume.key)));
    let notes = asked(&desired, &actual, &input).contains(&format!("one noted {VOLUME}"));
    assert!(sets_up != notes, "a record has one writer at a time: {planned:?}");
    input.running.insert(of_u1());
    assert!(asked(&desired, &actual, &input).is_empty());
    // That of another mount is not the volume's.
    input.running.clear();
    input.providers.answers.insert(id, answer("before", Some("{}")));
    assert_eq!(asked(&desired, &actual, &input), [format!("one setUp {VOLUME}")]);
}

#[test]
fn who_rests_is_left_alone_and_then_tried_with_one() {
    let (desired, actual) = there();
    let mut input = input(providers(&[("one", "*", ALL)]));
    let all = asked(&desired, &actual, &input).len();
    assert!(all > 1);
    input.now = Duration::from_secs(10);
    input.providers.resting.insert("one".into(), Duration::from_secs(11));
    let resting = plan(&desired, &actual, &input);
    assert_eq!(resting.wake_at, Some(Duration::from_secs(11)));
    assert!(asked(&desired, &actual, &input).is_empty());
    input.now = Duration::from_secs(11);
    assert_eq!(asked(&desired, &actual, &input).len(), 1);
}

#[test]
fn undoing_waits_for_the_end_of_a_call_and_nothing_else_does() {
    let (_, actual) = there();
    let mut input = input(providers(&[("one", "*", ALL)]));
    let gone = Desired { source: "manifests in /m".into(), ..Desired::default() };
    let of_u1_goes = |input: &PlanInput| {
        let operations = plan(&gone, &actual, input).operations;
        operations.iter().any(|o| matches!(o, Operation::TearDown { key, .. } if key.pod.as_str() == "u1"))
    };
    assert!(of_u1_goes(&input));
    input.running = BTreeSet::from([Exclusion::Provider("one".into(), Box::new(of_u1()))]);
    assert!(of_u1_goes(&input));
    input.running.insert(Exclusion::Asked(Box::new(of_u1())));
    assert!(!of_u1_goes(&input));
    let wanted = desired_of(&["u1"]);
    let sets_up = plan(&wanted, &actual, &input).operations;
    let before = plan(&wanted, &actual, &PlanInput::new(&Plugins::builtin())).operations;
    let count = |all: &[Operation]| {
        all.iter().filter(|o| !matches!(o, Operation::AskProvider { .. } | Operation::NoteAnswer { .. })).count()
    };
    assert_eq!(count(&sets_up), count(&before));
}
