//! Makes what a plugin announces durable before it acts.

use std::cell::{Cell, RefCell};

use refloat_record::{DeviceMount, PodVolume, Record, RecordedBlock, RecordedMount, Verbatim};
use refloat_volume::{Announcer, DeviceAnnouncer, VolumeError};

use super::Journal;

/// The record of one operation: what the store had before it, and what was announced since.
pub(super) struct Announced<'a, R> {
    journal: &'a Journal<'a>,
    before: Option<&'a R>,
    record: RefCell<R>,
    written: Cell<bool>,
}

impl<'a, R: Clone + PartialEq + Into<Record>> Announced<'a, R> {
    /// `before`: what the store has; `record`: what is known before the operation began.
    pub(super) fn new(journal: &'a Journal<'a>, before: Option<&'a R>, record: R) -> Self {
        Self { journal, before, record: RefCell::new(record), written: Cell::new(false) }
    }

    /// Whether a record was written.
    pub(super) fn is_written(&self) -> bool {
        self.written.get()
    }

    /// The record as last announced.
    pub(super) fn record(&self) -> R {
        self.record.borrow().clone()
    }

    /// Changes the record and writes it, unless the store has it already.
    fn write(&self, change: impl FnOnce(&mut R)) -> Result<(), VolumeError> {
        let mut record = self.record();
        change(&mut record);
        let stored = if self.written.get() { *self.record.borrow() == record } else { self.before == Some(&record) };
        if !stored {
            self.journal.put(record.clone().into())?;
            self.written.set(true);
        }
        *self.record.borrow_mut() = record;
        Ok(())
    }
}

impl Announcer for Announced<'_, PodVolume> {
    fn announce_call(&self, provider_info: Verbatim) -> Result<(), VolumeError> {
        self.write(|record| {
            record.provider_info = Some(provider_info);
            record.confirmed = false;
        })
    }

    fn announce(&self, mount: Option<RecordedMount>, provider_info: Option<Verbatim>) -> Result<(), VolumeError> {
        self.write(|record| {
            record.mount = mount;
            record.provider_info = provider_info;
        })
    }

    fn announce_block(&self, block: RecordedBlock, provider_info: Option<Verbatim>) -> Result<(), VolumeError> {
        self.write(|record| {
            record.block = Some(block);
            record.provider_info = provider_info;
        })
    }
}

impl DeviceAnnouncer for Announced<'_, DeviceMount> {
    fn announce_call(&self, provider_info: Verbatim) -> Result<(), VolumeError> {
        self.write(|record| {
            record.provider_info = Some(provider_info);
            record.confirmed = false;
        })
    }

    fn announce(
        &self,
        device: Option<String>,
        mount: Option<RecordedMount>,
        provider_info: Option<Verbatim>,
    ) -> Result<(), VolumeError> {
        self.write(|record| {
            record.device = device;
            record.mount = mount;
            record.provider_info = provider_info;
        })
    }
}
