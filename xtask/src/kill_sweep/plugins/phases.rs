//! What the manager does while it is killed, and what must hold then.

use anyhow::{Context, Result, bail};

use super::{Plugins, make_image};
use crate::kill_sweep::scenario::{Data, Kind, Scenario};
use crate::node::Node;

/// This scenario.
pub(in super::super) const KIND: Kind = Kind {
    phases: &[FIRST, SET_UP, UPDATE, TEAR_DOWN, END],
    others: &[],
    part: 160,
    shared: |folder| {
        if !make_image(&folder.join(IMAGE))? {
            println!("kill sweep: without disks (they need root, mkfs.ext4 and blkid)");
        }
        Ok(None)
    },
    new: |binary, shared| {
        let image = shared.join(IMAGE);
        Ok(Box::new(Plugins::new(binary, std::fs::metadata(&image).is_ok().then_some(&image))?))
    },
};

const IMAGE: &str = "image";

/// The first start ever, with the pods there.
const FIRST: &str = "first";
/// The pods come to a node that has a state folder.
const SET_UP: &str = "set-up";
/// Their configMap and secret change.
const UPDATE: &str = "update";
/// Some pods go: one of two users of a device, and the only user of another.
const TEAR_DOWN: &str = "tear-down";
/// All pods go.
const END: &str = "end";

impl Scenario for Plugins {
    fn prepare(&mut self, phase: &str) -> Result<()> {
        match phase {
            FIRST => return Ok(()),
            SET_UP => {
                self.node.no_pods()?;
                self.node.once()?.expect(0).context("the start before the pods")?;
                return self.apply_all();
            }
            _ => {}
        }
        self.node.once()?.expect(0).context("the set-up before the kill")?;
        self.write_data()?;
        match phase {
            UPDATE => self.update(),
            TEAR_DOWN => self.remove_some(),
            END => self.node.no_pods(),
            other => bail!("there is no phase {other:?}"),
        }
    }

    fn node(&self) -> &Node {
        &self.node
    }

    fn check_restart(&mut self, phase: &str) -> Result<()> {
        if phase == END {
            // "The same pods" are none here, which is checked afterwards. Before that they all come back.
            self.apply_all()?;
        }
        self.node.once()?.expect(0).context("the restart with the same pods")?;
        match phase {
            UPDATE => self.check_all_there("two", false, Data::All),
            TEAR_DOWN => self.check_all_there("one", true, Data::All),
            END => self.check_all_there("one", false, Data::Persistent),
            _ => self.check_all_there("one", false, Data::None),
        }
    }

    fn check_nothing_left(&self) -> Result<()> {
        self.check_all_gone()
    }
}
