//! `refloat agent`: the companion of a kubelet.

use std::os::fd::AsFd;

use refloat_node::ManagerError;
use refloat_node::agent::{Agent, AgentError, AgentOptions};

use super::node::stop_signals;
use crate::cli::AgentArgs;
use crate::config::Settings;
use crate::exit::{Done, Failure};
use crate::look::open_root;

/// Runs the command.
pub(crate) fn run(args: &AgentArgs, settings: &Settings) -> Result<Done, Failure> {
    let root = open_root(settings)?.path().to_owned();
    let options =
        AgentOptions { root_dir: settings.root_dir.clone(), state_dir: settings.state_dir.clone(), rest: args.rest };
    // The signals are taken before anything is done, so that none can stop it half-way.
    let stop = stop_signals()?;
    let mut agent = Agent::start(options, None).map_err(|e| explain(e, settings))?;
    tracing::info!(root = %root.display(), records = %settings.state_dir.display(), "the agent runs");
    agent.run(stop.as_fd()).map_err(|e| explain(e, settings))?;
    tracing::info!("stopped; records and volumes stay as they are");
    Ok(Done::Well)
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
