//! `refloat agent`: the companion of a kubelet.

use std::os::fd::AsFd;

use refloat_node::agent::{Agent, AgentError, AgentOptions, Cleaning};
use refloat_node::clean::{CleanOptions, NoAuthority};
use refloat_node::{ManagerError, SourceKind};

use super::clean::{assumed_devices, authority, how, options as options_of};
use super::node::stop_signals;
use crate::cli::{AgentArgs, SourceArgs};
use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::look::open_root;
use crate::sources;

/// Runs the command.
pub(crate) fn run(args: &AgentArgs, settings: &Settings) -> Result<Done, Failure> {
    let root = open_root(settings)?.path().to_owned();
    let options =
        AgentOptions { root_dir: settings.root_dir.clone(), state_dir: settings.state_dir.clone(), rest: args.rest };
    // The signals are taken before anything is done, so that none can stop it half-way.
    let stop = stop_signals()?;
    let objects = sources::objects(&args.undo.authority.sources)?;
    let mut agent = Agent::start(options, objects, cleaning(args, settings)?).map_err(|e| explain(e, settings))?;
    if args.once {
        let done = agent.once().map_err(|e| explain(e, settings))?;
        return if done {
            Ok(Done::Well)
        } else {
            Err(Failure::message("not all could be done", "the messages above say what; run it again"))
        };
    }
    tracing::info!(root = %root.display(), records = %settings.state_dir.display(), "the agent runs");
    agent.run(stop.as_fd()).map_err(|e| explain(e, settings))?;
    tracing::info!("stopped; records and volumes stay as they are");
    Ok(Done::Well)
}

/// How it cleans, if it does.
fn cleaning(args: &AgentArgs, settings: &Settings) -> Result<Option<Cleaning>, Failure> {
    if !args.clean {
        return Ok(None);
    }
    let undo = &args.undo;
    // A pod that is gone never comes again; a device does, and the word would outlive what it was said of.
    if let Some(device) = assumed_devices(&undo.authority).first() {
        let message = format!("--assume-gone {}: an agent takes only pods for gone, not devices", device.0);
        return Err(Failure::usage(message, "`refloat clean --assume-gone` does it once"));
    }
    // Once now, so that what is wrong with it is told at once.
    authority(settings, &undo.authority)?;
    if undo.authority.assume_gone.is_empty()
        && let Some((message, hint)) = missing_source(&undo.authority.sources, settings)?
    {
        return Err(Failure::usage(message, hint));
    }
    let (sources, settings) = (undo.authority.clone(), settings.clone());
    let listener = sources::listener(&undo.authority.sources)?;
    Ok(Some(Cleaning {
        listener,
        options: CleanOptions { grace: args.grace, ..options_of(undo)? },
        cleaner: how(&settings, &undo.drivers, undo.workers, undo.timeout),
        authority: Box::new(move || authority(&settings, &sources).unwrap_or_else(|_| Box::new(NoAuthority))),
    }))
}

/// What is wrong with these sources, and what to do, if with them no pod could ever be gone: some of them must know which
/// pods should be here, and some must see what runs here.
fn missing_source(args: &SourceArgs, settings: &Settings) -> Result<Option<(&'static str, &'static str)>, Failure> {
    if args.manifests.is_some() || settings.file.manifests.is_some() {
        return Ok(None);
    }
    let kinds: Vec<SourceKind> = sources::of_this_node(args, settings)?.iter().map(|source| source.kind()).collect();
    Ok(if !kinds.iter().any(|kind| kind.is_authority()) {
        Some((
            "--clean needs somebody who knows which pods are gone",
            "name the kubelet with --kubelet, the API server with --node-name, or a folder with --manifests: cgroups and \
             container runtimes only know what runs",
        ))
    } else if !kinds.iter().any(|kind| kind.sees_the_node()) {
        Some((
            "--clean needs somebody who sees what runs on this node: the API server alone does not",
            "name the kubelet with --kubelet, or let --sources find the cgroups or the container runtime",
        ))
    } else {
        None
    })
}

/// What to do about an agent that does not start, or ended.
fn explain(error: AgentError, settings: &Settings) -> Failure {
    let state = settings.state_dir.display();
    let hint = match &error {
        AgentError::Start(ManagerError::Store(refloat_record::OpenError::Locked { .. })) => {
            "only one agent or manager may use a state folder: stop the other one, or give this one another --state-dir"
                .into()
        }
        AgentError::Start(ManagerError::Store(_)) => {
            format!("{state} must be a folder that this user can write; name another with --state-dir")
        }
        AgentError::StateGone { .. } => "find out who took it away; start the agent again, and it records anew".into(),
        _ => "run it as root; `refloat doctor` says what this node lacks".into(),
    };
    Failure::with_hint(error, hint)
}
