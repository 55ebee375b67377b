//! What the manager does while it or a driver is killed, and what must hold then.

use std::process::ExitStatus;

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::Pid;

use super::{Csi, DIRECT, GROWN, STAGING, unable};
use crate::kill_sweep::point::Point;
use crate::kill_sweep::scenario::{Data, Kind, Scenario};
use crate::node::Node;

/// This scenario.
pub(in super::super) const KIND: Kind = Kind {
    phases: &[FIRST, RESTART, GROW, TEAR_DOWN, END],
    others: &[STAGING, DIRECT],
    part: 110,
    shared: |_| Ok(unable()),
    new: |binary, _| Ok(Box::new(Csi::new(binary)?)),
};

/// The first start ever, with drivers and pods there.
const FIRST: &str = "csi-first";
/// A start with everything mounted, and the drivers at other sockets than before.
const RESTART: &str = "csi-restart";
/// Volumes grow.
const GROW: &str = "csi-grow";
/// Some pods go: one of two users of a volume, and the only user of another.
const TEAR_DOWN: &str = "csi-tear-down";
/// All pods go.
const END: &str = "csi-end";

impl Scenario for Csi {
    fn prepare(&mut self, phase: &str) -> Result<()> {
        if phase == FIRST {
            return Ok(());
        }
        self.node.once()?.expect(0).context("the set-up before the kill")?;
        self.write_data()?;
        match phase {
            RESTART => {
                self.start_again(STAGING, true)?;
                self.start_again(DIRECT, true)
            }
            GROW => self.apply_volumes(GROWN),
            TEAR_DOWN => self.remove_some(),
            END => self.node.no_pods(),
            other => bail!("there is no phase {other:?}"),
        }
    }

    fn node(&self) -> &Node {
        &self.node
    }

    fn socket_calls(&self) -> &'static [&'static str] {
        &["connect", "sendto", "sendmsg", "recvfrom", "recvmsg", "read", "readv"]
    }

    fn other(&self, name: &str) -> Option<Pid> {
        let driver = match name {
            STAGING => &self.staging,
            DIRECT => &self.direct,
            _ => return None,
        };
        driver.pid().and_then(|pid| pid.try_into().ok()).map(Pid::from_raw)
    }

    fn after_other(&mut self, point: &Point, status: ExitStatus) -> Result<()> {
        // It does what it can without the driver, and says that something is left to do.
        ensure!(matches!(status.code(), Some(0 | 1 | 3)), "at {point} the manager ended with {status}");
        let name = point.other.as_deref().context("nobody else was killed")?;
        self.start_again(name, point.number % 2 == 1)
    }

    fn check_restart(&mut self, phase: &str) -> Result<()> {
        if phase == END {
            // "The same pods" are none here, which is checked afterwards. Before that they all come back.
            self.apply_all()?;
        }
        self.node.once()?.expect(0).context("the restart with the same pods")?;
        match phase {
            GROW => self.check_all_there(true, false, Data::All),
            TEAR_DOWN => self.check_all_there(false, true, Data::All),
            END => self.check_all_there(false, false, Data::Persistent),
            RESTART => self.check_all_there(false, false, Data::All),
            _ => self.check_all_there(false, false, Data::None),
        }
    }

    fn check_nothing_left(&self) -> Result<()> {
        self.check_all_gone()
    }
}
