//! `refloat clean`: what no pod wants is unmounted and removed, and nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use refloat_node::ManagerError;
use refloat_node::clean::{
    Authority, CleanError, CleanOptions, Cleaner, CleanerOptions, Manifests, NoAuthority, Sources, Target,
};
use refloat_record::PodUid;

use crate::cli::{AuthorityArgs, CleanArgs, DriverArgs, UndoArgs};
use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::look::open_root;
use crate::output::clean_plan::CleanOutput;
use crate::output::table::Look;
use crate::sources;

/// How long one operation may take before the others go on without it, if all may take longer.
const OPERATION_DEADLINE: Duration = Duration::from_secs(60);

/// Runs the command.
pub(crate) fn run(args: &CleanArgs, settings: &Settings) -> Result<Done, Failure> {
    let options = CleanOptions {
        targets: args.targets.iter().cloned().map(Target).collect(),
        grace: args.grace,
        ..options(&args.undo)?
    };
    let undo = &args.undo;
    let how = CleanerOptions { write: args.yes, ..how(settings, &undo.drivers, undo.workers, undo.timeout) };
    let mut cleaner = cleaner(settings, &undo.authority, how)?;
    let (plan, seen) = cleaner.plan(&options).map_err(|e| explain(e, settings))?;
    if !options.targets.is_empty() && plan.units.is_empty() && plan.kept.is_empty() && plan.wanted.is_empty() {
        let names: Vec<&str> = options.targets.iter().map(|t| t.0.as_str()).collect();
        return Err(Failure::message(
            format!("there is nothing on this node that is called {}", names.join(" or ")),
            "name a pod by its uid or namespace/name, a volume by its path or unique name; `refloat scan -o wide` shows them",
        ));
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let look = Look::of_stdout(settings.color);
    if !args.yes {
        let output = CleanOutput::new("CleanPlan", &plan, false, None).with_sources(cleaner.asked());
        let output = output.with_problems(&seen.actual.problems);
        output.print(&mut out, settings.output, look)?;
        return Ok(Done::attention_if(!plan.kept.is_empty() || output.has_problems()));
    }
    let report = cleaner.execute(plan, &options).map_err(|e| explain(e, settings))?;
    let output = CleanOutput::new("CleanPlan", &report.plan, true, report.stopped.clone());
    let output = output.with_sources(cleaner.asked()).with_problems(&seen.actual.problems);
    output.print(&mut out, settings.output, look)?;
    if let Some(why) = report.stopped {
        return Err(stopped(&why));
    }
    match report.failed() {
        0 => {}
        1 => return Err(failed("one step failed")),
        steps => return Err(failed(&format!("{steps} steps failed"))),
    }
    Ok(Done::attention_if(report.is_unfinished() || !report.plan.kept.is_empty() || output.has_problems()))
}

/// The failure of a clean-up that met a surprise.
pub(super) fn stopped(why: &str) -> Failure {
    Failure::message(
        format!("stopped before the end: {why}"),
        "what was done is listed above; look at what changed, then run it again",
    )
}

/// The failure of a clean-up that went to its end and could not do all.
fn failed(what: &str) -> Failure {
    Failure::message(
        format!("{what}, and all else was done"),
        "each is named above with what it met; put that right and run it again",
    )
}

/// What these flags allow.
pub(super) fn options(args: &UndoArgs) -> Result<CleanOptions, Failure> {
    Ok(CleanOptions {
        assume_gone: assumed(&args.authority)?,
        assume_unused: assumed_devices(&args.authority),
        delete_ephemeral: args.delete_ephemeral,
        without_driver: args.without_driver,
        force: args.force,
        ..CleanOptions::default()
    })
}

/// The pods that the operator says are gone.
pub(super) fn assumed(args: &AuthorityArgs) -> Result<BTreeSet<PodUid>, Failure> {
    let uid = |text: &String| {
        PodUid::new(text).map_err(|e| {
            Failure::usage(
                format!("--assume-gone {text}: {e}"),
                "name a pod by its uid, or a device by its path or unique name",
            )
        })
    };
    args.assume_gone.iter().filter(|name| !is_device(name)).map(uid).collect()
}

/// The devices that the operator says no pod is about to use.
pub(super) fn assumed_devices(args: &AuthorityArgs) -> Vec<Target> {
    args.assume_gone.iter().filter(|name| is_device(name)).cloned().map(Target).collect()
}

/// Whether this names a device: paths and unique volume names have a slash, and uids do not.
fn is_device(name: &str) -> bool {
    name.contains('/')
}

/// Opens what cleans.
pub(super) fn cleaner(settings: &Settings, args: &AuthorityArgs, options: CleanerOptions) -> Result<Cleaner, Failure> {
    // So that a root that is not there is told as everywhere.
    open_root(settings)?;
    Cleaner::open(options, authority(settings, args)?).map_err(|e| explain(e, settings))
}

/// How a clean-up is carried out.
pub(super) fn how(settings: &Settings, drivers: &DriverArgs, workers: u16, timeout: Duration) -> CleanerOptions {
    CleanerOptions {
        root_dir: settings.root_dir.clone(),
        state_dir: settings.state_dir.clone(),
        write: false,
        workers: workers.into(),
        operation_deadline: OPERATION_DEADLINE.min(timeout),
        timeout,
        flex_volume_dir: settings.flex_volume_dir(drivers),
        sys: drivers.sys(),
        provider_dir: settings.provider_dir(drivers),
    }
}

/// Who says which pods are wanted.
pub(super) fn authority(settings: &Settings, args: &AuthorityArgs) -> Result<Box<dyn Authority>, Failure> {
    let sources = sources::of_this_node(&args.sources, settings)?;
    let manifests = match args.sources.manifests.as_ref().or(settings.file.manifests.as_ref()) {
        None => None,
        Some(folder) => {
            let absolute = std::path::absolute(folder);
            let wrong = |e| format!("cannot make {} absolute: {e}", folder.display());
            let folder = absolute.map_err(|e| Failure::usage(wrong(e), "check --manifests"))?;
            Some(Manifests::new(folder, settings.state_dir.clone()))
        }
    };
    Ok(match (sources.is_empty(), manifests) {
        (true, None) => Box::new(NoAuthority),
        (true, Some(manifests)) => Box::new(manifests),
        (false, manifests) => Box::new(Sources::new(sources, manifests, sources::patience(&args.sources))),
    })
}

/// What to do about a clean-up that does not start.
pub(super) fn explain(error: CleanError, settings: &Settings) -> Failure {
    let hint = match &error {
        CleanError::Start(ManagerError::Store(refloat_record::OpenError::Locked { .. })) => {
            "a Refloat manager runs on this node and cleans up by itself; `refloat explain` says what it waits for"
                .into()
        }
        CleanError::Start(ManagerError::Store(_)) => {
            let state = settings.state_dir.display();
            format!("{state} must be a folder that this user can write; name another with --state-dir")
        }
        _ => "run it as root; `refloat doctor` says what this node lacks".into(),
    };
    Failure::with_hint(error, hint)
}
