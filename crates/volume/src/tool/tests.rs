use super::*;

fn sh(script: &str, deadline: Duration) -> Result<ToolOutput, ToolError> {
    run_tool("sh", &[OsStr::new("-c"), OsStr::new(script)], deadline)
}

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn output_and_exit_code_come_back() {
    let output = sh("echo out; echo err >&2; exit 3", PATIENCE).unwrap();
    assert_eq!((output.code, &*output.stdout, &*output.stderr), (Some(3), &b"out\n"[..], &b"err\n"[..]));
    let error = output.success("sh").unwrap_err();
    assert_eq!(error.to_string(), "sh failed (exit code 3): err");
}

#[test]
fn the_locale_is_c_and_there_is_no_input() {
    let output = sh("echo $LC_ALL; cat; echo end", PATIENCE).unwrap();
    assert_eq!(output.stdout, b"C\nend\n");
}

#[test]
fn arguments_are_not_read_by_a_shell() {
    let output = run_tool("printf", &[OsStr::new("%s"), OsStr::new("$(id); *")], PATIENCE).unwrap();
    assert_eq!(output.stdout, b"$(id); *");
}

#[test]
fn a_missing_tool_is_named() {
    let error = run_tool("refloat-no-such-tool", &[], PATIENCE).unwrap_err();
    assert_eq!(error.to_string(), "cannot run refloat-no-such-tool");
    assert_eq!(crate::VolumeError::Tool(error).problem().code, "ToolMissing");
}

#[test]
fn much_output_is_cut_and_does_not_block_the_tool() {
    let output = sh("head -c 1000000 /dev/zero; head -c 300000 /dev/zero >&2", PATIENCE).unwrap();
    assert_eq!((output.code, output.stdout.len(), output.stderr.len()), (Some(0), MAX_OUTPUT, MAX_OUTPUT));
}

#[test]
fn a_signal_is_no_exit_code() {
    assert_eq!(sh("kill -TERM $$", PATIENCE).unwrap().code, None);
}

#[test]
fn the_deadline_kills_grandchildren_too() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let script = format!("sleep 1000 & echo $! > {}; wait", pid_file.display());
    let start = Instant::now();
    let error = sh(&script, Duration::from_millis(500)).unwrap_err();
    assert!(matches!(error, ToolError::Deadline { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
    let pid: i32 = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
    // The grandchild is init's now, or a zombie that nobody has collected yet; it does not run.
    let patience = Instant::now() + PATIENCE;
    loop {
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Err(_) => break,
            Ok(line) if line.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X'])) => break,
            Ok(line) => assert!(Instant::now() < patience, "still there: {line}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_grandchild_that_holds_the_output_open_is_not_waited_for() {
    let start = Instant::now();
    let output = sh("sleep 30 & echo $!; exit 0", PATIENCE).unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(output.code, Some(0));
    let pid: i32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_tool_that_writes_without_end_meets_its_deadline() {
    let error = sh("yes", Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, ToolError::Deadline { .. }), "{error}");
}

#[test]
fn input_is_given_and_its_end_too() {
    let much = vec![b'x'; 1 << 20];
    let count = |script: &str, input: &[u8]| {
        run("sh".as_ref(), &[OsStr::new("-c"), OsStr::new(script)], &[], Some(input), PATIENCE).unwrap()
    };
    assert_eq!(String::from_utf8(count("wc -c", &much).stdout).unwrap().trim(), "1048576");
    assert_eq!(count("cat", b"").stdout, b"");
    // One that does not read it is not hung up by it, nor is the caller.
    assert_eq!(count("exec <&-; echo done", &much).stdout, b"done\n");
    assert_eq!(count("echo done", &much).stdout, b"done\n");
}

#[test]
fn a_tool_that_does_not_read_its_input_meets_its_deadline() {
    let error = run("sleep".as_ref(), &[OsStr::new("1000")], &[], Some(&vec![0; 1 << 20]), Duration::from_millis(300));
    assert!(matches!(error.unwrap_err(), ToolError::Deadline { .. }));
}

#[test]
fn variables_are_added() {
    let more = [("REFLOAT_TEST_X", OsStr::new("a b"))];
    let output =
        run("sh".as_ref(), &[OsStr::new("-c"), OsStr::new("echo $REFLOAT_TEST_X$LC_ALL")], &more, None, PATIENCE);
    assert_eq!(output.unwrap().stdout, b"a bC\n");
}

#[test]
fn a_secret_at_the_cut_of_a_message_is_not_shown_in_part() {
    let secrets = Secrets::new([("password".to_owned(), "hunter2-of-the-server".to_owned())].into());
    for before in MAX_SAID - 25..=MAX_SAID + 5 {
        let script = format!("head -c {before} /dev/zero | tr '\\0' x >&2; echo hunter2-of-the-server >&2; exit 1");
        let error = sh(&script, PATIENCE).unwrap().success_without("sh", &secrets).unwrap_err().to_string();
        assert!(!error.contains("hunt"), "{before}: {error}");
    }
}
