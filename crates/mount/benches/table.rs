//! The mount table: parsing, look-ups at two sizes, and the kernel's two sources.
//!
//! Look-ups must cost microseconds at most and about the same at either size.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use criterion::{BenchmarkId, Criterion, Throughput};
use refloat_mount::{Device, Kernel, KernelFeatures, Mount, MountTable, NodeRoot, TableReader};

/// Sizes to compare.
const SIZES: [usize; 2] = [1_000, 50_000];

/// Where the synthetic pods are.
const ROOT: &str = "/var/lib/kubelet";

fn pod(index: usize) -> String {
    format!(
        "{ROOT}/pods/{:08x}-7f5e-4d0c-9a51-{:012x}",
        (index / 10).wrapping_mul(0x9e37_79b1) & 0xffff_ffff,
        index / 10
    )
}

/// The text of a node's table: every tenth of the mounts is of one pod; half are memory, half binds of a few disks.
fn mountinfo(mounts: usize) -> String {
    let mut text = String::from("1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n");
    for index in 1..mounts {
        let (id, pod) = (index + 1, pod(index));
        let line = if index % 2 == 0 {
            let volume = format!("{pod}/volumes/kubernetes.io~secret/token-{index}");
            writeln!(text, "{id} 1 0:{index} / {volume} rw,relatime shared:{id} - tmpfs tmpfs rw,size=1048576k,inode64")
        } else {
            let volume = format!("{pod}/volumes/kubernetes.io~local-volume/pv-{index}");
            let disk = index % 16;
            writeln!(text, "{id} 1 8:{disk} /data/{index} {volume} rw,relatime shared:{id} - ext4 /dev/sd{disk} rw")
        };
        line.expect("writing into memory");
    }
    text
}

fn parse(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    group.sample_size(20);
    for size in SIZES {
        let text = mountinfo(size);
        group.throughput(Throughput::Elements(size as u64));
        group.bench_with_input(BenchmarkId::new("lines", size), &text, |bench, text| {
            bench.iter(|| refloat_mount::mountinfo::lines(black_box(text.as_bytes())).flatten().count());
        });
        group.bench_with_input(BenchmarkId::new("table", size), &text, |bench, text| {
            bench.iter(|| MountTable::from_mountinfo(black_box(text.as_bytes())).0.len());
        });
    }
    group.finish();
}

fn look_ups(criterion: &mut Criterion) {
    for size in SIZES {
        let (table, bad) = MountTable::from_mountinfo(mountinfo(size).as_bytes());
        assert!(bad.is_empty() && table.len() == size);
        let points: Vec<PathBuf> = table.iter().map(|mount| mount.point().to_owned()).collect();
        let pods: Vec<PathBuf> = (0..size).step_by(10).map(|index| PathBuf::from(pod(index))).collect();
        let inside: Vec<PathBuf> = points.iter().map(|point| point.join("some/file")).collect();
        let roots: Vec<(Device, PathBuf)> =
            table.iter().map(|mount| (mount.device(), mount.root().to_owned())).collect();
        let mut group = criterion.benchmark_group("look-up");
        let mut at = 0;
        // A step that is no divisor of the sizes, so that every look-up is elsewhere in memory.
        let mut next = |length: usize| {
            at = (at + 7_919) % length;
            at
        };
        group.bench_function(BenchmarkId::new("at", size), |bench| {
            bench.iter(|| table.at(black_box(&points[next(size)])).expect("it is there").short_id());
        });
        group.bench_function(BenchmarkId::new("under", size), |bench| {
            bench.iter(|| table.under(black_box(&pods[next(pods.len())])).map(Mount::short_id).sum::<u32>());
        });
        group.bench_function(BenchmarkId::new("covering", size), |bench| {
            bench.iter(|| table.covering(black_box(&inside[next(size)])).expect("all lies in one").short_id());
        });
        group.bench_function(BenchmarkId::new("same_root", size), |bench| {
            bench.iter(|| {
                let (device, root) = &roots[next(size)];
                table.same_root(*device, black_box(root)).len()
            });
        });
        group.finish();
    }
}

/// Both sources on real mounts, if this process may mount.
fn sources(criterion: &mut Criterion, private: bool) {
    if !private {
        println!("skipped `source`: no private mount namespace");
        return;
    }
    let folder = tempfile::Builder::new().prefix("refloat-bench").tempdir().expect("a temporary folder");
    let root = NodeRoot::open(folder.path()).expect("it opens");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("bench", root.path(), "tmpfs", flags, None).expect("mount a tmpfs");
    let new = Kernel::detect();
    let old = Kernel::with_features(KernelFeatures { openat2: true, ..KernelFeatures::default() });
    let mut have = 0;
    for size in [1_000_usize, 10_000] {
        for index in have..size {
            let point = root.path().join(format!("pods/{:06}/volumes/kubernetes.io~empty-dir/v{index}", index / 10));
            std::fs::create_dir_all(&point).expect("make the folder");
            rustix::mount::mount("tmpfs", &point, "tmpfs", flags, Some(c"size=4k")).expect("mount");
        }
        have = size;
        let mut group = criterion.benchmark_group("source");
        group.sample_size(20).throughput(Throughput::Elements(size as u64));
        if new.features().listmount {
            group.bench_function(BenchmarkId::new("statmount, all", size), |bench| {
                let mut reader = TableReader::new(new);
                bench.iter(|| reader.read_anew().expect("read").len());
            });
            group.bench_function(BenchmarkId::new("listmount, nothing new", size), |bench| {
                let mut reader = TableReader::new(new);
                reader.read().expect("read");
                bench.iter(|| reader.read().expect("read").len());
            });
            group.bench_function(BenchmarkId::new("listmount, one new, one gone", size), |bench| {
                let point = root.path().join("change");
                let _ = std::fs::create_dir(&point);
                let mut reader = TableReader::new(new);
                reader.read().expect("read");
                bench.iter_custom(|rounds| {
                    let mut spent = std::time::Duration::ZERO;
                    for _ in 0..rounds {
                        rustix::mount::mount("tmpfs", &point, "tmpfs", flags, None).expect("mount");
                        let start = std::time::Instant::now();
                        reader.read().expect("read");
                        spent += start.elapsed();
                        let detach = rustix::mount::UnmountFlags::DETACH;
                        rustix::mount::unmount(&point, detach).expect("unmount");
                    }
                    spent
                });
            });
        }
        group.bench_function(BenchmarkId::new("mountinfo, whole", size), |bench| {
            let mut reader = TableReader::new(old);
            bench.iter(|| reader.read().expect("read").len());
        });
        group.bench_function(BenchmarkId::new("mountinfo, text only", size), |bench| {
            bench.iter(|| std::fs::read(Path::new("/proc/thread-self/mountinfo")).expect("read").len());
        });
        group.finish();
    }
    let _ = rustix::mount::unmount(root.path(), rustix::mount::UnmountFlags::DETACH);
}

fn main() {
    let private = match refloat_mount::enter_private_namespace() {
        Ok(_) => true,
        Err(error) => {
            println!("no private mount namespace: {error}");
            false
        }
    };
    let mut criterion = Criterion::default().configure_from_args();
    parse(&mut criterion);
    look_ups(&mut criterion);
    sources(&mut criterion, private);
    criterion.final_summary();
}
