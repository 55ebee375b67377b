//! The machine that was measured on.

/// The head of a report with this title, which this command writes.
pub(super) fn describe(title: &str, command: &str) -> String {
    format!(
        "# {title}\n\nWritten by `{command}` (release build). Each figure stands beside what it is compared to, measured in the \
         same run; ratios count, not last digits.\n\n{}\n\n",
        machine()
    )
}

/// The machine, its load and the day.
pub(super) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
    };
    let cpu = field(&read("/proc/cpuinfo"), "model name");
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let memory = memory.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024 / 1024;
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    format!(
        "Machine: {cpu}, {cores} cores, {memory} GiB of memory, Linux {}, load {} at the start. {}.",
        kernel.trim(),
        load.split(' ').next().unwrap_or("?"),
        jiff::Timestamp::now().strftime("%Y-%m-%d"),
    )
}
