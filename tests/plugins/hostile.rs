//! Guests that exceed each limit. The call ends within the limit with an error that names the plugin and the limit, and
//! the host continues to work.

use std::time::{Duration, Instant};

use agentd_plugin_host::{Call, CallError, Change, CheckOutcome, Code, Limits, LoadError, LogLevel, Plugin};

use crate::bench::{Bench, Fake, Stuck, call, everything};
use crate::guest::{Guest, LOG, LOGIN};

const TIME: Duration = Duration::from_millis(300);
/// Extra time for a loaded machine to notice the end of a guest. A guest without a working limit never ends.
const SLACK: Duration = Duration::from_secs(5);

fn limits() -> Limits {
    Limits { time: TIME, memory: 8 << 20, output: 1 << 20, ..Limits::default() }
}

fn hostile_call() -> Call {
    Call { limits: limits(), ..call(Fake::default().login(&[("A", b"1")])) }
}

async fn load(bench: &Bench, guest: &Guest<'_>) -> Plugin {
    bench.load_bytes("hostile", &guest.provider(), &everything()).await.unwrap()
}

/// Returns the error of the guest's `provide`. Asserts that native and interpreted code give the same error.
async fn error_of(guest: &Guest<'_>) -> CallError {
    let native = error_as(guest, Code::Native).await;
    let interpreted = error_as(guest, Code::Interpreted).await;
    assert_eq!(interpreted.to_string(), native.to_string());
    native
}

async fn error_as(guest: &Guest<'_>, code: Code) -> CallError {
    let bench = Bench::with(|options| options.code = Some(code));
    let plugin = load(&bench, guest).await;
    let start = Instant::now();
    let error = plugin.provide(hostile_call()).await.unwrap_err();
    assert!(start.elapsed() < TIME + SLACK, "ended after {:?}: {error}", start.elapsed());
    bench.still_works().await;
    plugin.warm_up(limits()).await;
    let start = Instant::now();
    let prepared = plugin.provide(hostile_call()).await.unwrap_err();
    assert!(start.elapsed() < TIME + SLACK, "ended after {:?}: {prepared}", start.elapsed());
    assert_eq!(prepared.to_string(), error.to_string());
    error
}

/// Returns the error of loading a guest that is already hostile in `describe` or its start function.
async fn load_error_of(guest: &Guest<'_>) -> String {
    let native = load_error_as(guest, Code::Native).await;
    assert_eq!(load_error_as(guest, Code::Interpreted).await, native);
    native
}

async fn load_error_as(guest: &Guest<'_>, code: Code) -> String {
    let bench = Bench::with(|options| {
        options.code = Some(code);
        options.describe_limits = limits();
    });
    let start = Instant::now();
    let error = bench.load_bytes("hostile", &guest.provider(), &everything()).await.unwrap_err();
    assert!(start.elapsed() < TIME + SLACK, "ended after {:?}", start.elapsed());
    let LoadError::Describe { plugin, source } = error else { panic!("{error:?}") };
    assert_eq!(plugin, "hostile");
    let other = Bench::new(); // with limits that are not made for hostile guests
    other.still_works().await;
    bench.still_works().await;
    source.to_string()
}

const LOOP: &str = "(loop $again (br $again))";

#[tokio::test]
async fn a_guest_that_harms_nobody_works() {
    let bench = Bench::new();
    let plugin = load(&bench, &Guest::default()).await;
    assert_eq!(plugin.name(), "hostile");
    assert_eq!(plugin.provide(hostile_call()).await.unwrap(), []);
}

#[tokio::test]
async fn an_endless_loop_ends_at_the_limit_of_time() {
    let error = error_of(&Guest { provide: LOOP, ..Guest::default() }).await;
    assert_eq!(error.to_string(), "plugin \"hostile\" took longer than its 300 ms");
    assert_eq!(error.code(), "plugin-time");
}

#[tokio::test]
async fn an_endless_loop_in_describe_or_at_the_start_keeps_the_plugin_out() {
    let describe = load_error_of(&Guest { describe: LOOP, ..Guest::default() }).await;
    assert_eq!(describe, "plugin \"hostile\" took longer than its 300 ms");
    let fields = format!("(func $begin {LOOP}) (start $begin)");
    let start = load_error_of(&Guest { fields: &fields, ..Guest::default() }).await;
    assert_eq!(start, "plugin \"hostile\" took longer than its 300 ms");
}

#[tokio::test]
async fn a_loop_that_goes_on_asking_a_host_that_does_not_answer_ends_at_the_limit_of_time() {
    let bench = Bench::new();
    // The guest frees the memory of each answer, so time is the only limit that it can reach.
    let provide = "(loop $again (call $login (i32.const 512)) (global.set $next (i32.const 65536)) (br $again))";
    let plugin = load(&bench, &Guest { imports: LOGIN, provide, ..Guest::default() }).await;
    let start = Instant::now();
    let error = plugin.provide(Call { limits: limits(), ..call(Stuck) }).await.unwrap_err();
    assert!(start.elapsed() >= TIME && start.elapsed() < TIME + SLACK, "{:?}", start.elapsed());
    assert_eq!(error.to_string(), "plugin \"hostile\" took longer than its 300 ms");
    bench.still_works().await;
}

#[tokio::test]
async fn a_host_call_that_blocks_ends_at_the_limit_and_says_what_blocked() {
    let bench = Bench::new();
    let plugin = bench.load_built_in("snapshot").await;
    let start = Instant::now();
    let limits = Limits { time: Duration::from_secs(1), ..limits() };
    let error = plugin.provide(Call { limits, ..call(Stuck) }).await.unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(900) && start.elapsed() < SLACK, "{:?}", start.elapsed());
    assert_eq!(
        error.to_string(),
        "plugin \"snapshot\" failed: took too long: the login shell did not end within the 900 ms that it has"
    );
    bench.still_works().await;
}

#[tokio::test]
async fn memory_ends_at_its_limit() {
    let grow = "(loop $again (drop (memory.grow (i32.const 16))) (br $again))";
    let error = error_of(&Guest { provide: grow, ..Guest::default() }).await;
    assert_eq!(error.to_string(), "plugin \"hostile\" used more than its 8 MiB of memory");
    let all_at_once = "(drop (memory.grow (i32.const 65000)))";
    let error = error_of(&Guest { provide: all_at_once, ..Guest::default() }).await;
    assert!(matches!(error, CallError::Memory { .. }), "{error}");
    let declared = load_error_of(&Guest { pages: 2000, ..Guest::default() }).await;
    assert_eq!(declared, "plugin \"hostile\" used more than its 8 MiB of memory");
}

#[tokio::test]
async fn tables_end_at_their_limit() {
    let grow = "(loop $again (drop (table.grow $t (ref.null func) (i32.const 30000))) (br $again))";
    let error = error_of(&Guest { fields: "(table $t 1 funcref)", provide: grow, ..Guest::default() }).await;
    assert_eq!(error.to_string(), "plugin \"hostile\" used more than its 100000 table entries");
    let declared = load_error_of(&Guest { fields: "(table 5000000 funcref)", ..Guest::default() }).await;
    assert_eq!(declared, "plugin \"hostile\" used more than its 100000 table entries");
}

#[tokio::test]
async fn recursion_ends_at_the_limit_of_the_stack() {
    let fields = "(func $deep (param i64) (result i64) \
        (i64.add (call $deep (i64.add (local.get 0) (i64.const 1))) (i64.const 1)))";
    let error = error_of(&Guest { fields, provide: "(drop (call $deep (i64.const 0)))", ..Guest::default() }).await;
    assert_eq!(error.to_string(), "plugin \"hostile\" used more than its 512 KiB of stack");
}

/// Returns instructions that grow the memory to 7 MiB and answer with a list of this length at address 256.
fn answer(length: u32) -> String {
    format!(
        "(drop (memory.grow (i32.const 110))) (i32.store (i32.const 68) (i32.const 256)) \
         (i32.store (i32.const 72) (i32.const {length}))"
    )
}

/// Returns instructions for the first element of the list at 256: `NAME` gets `length` bytes from 65536 on.
fn set_name(length: u32) -> String {
    format!(
        "(i32.store (i32.const 260) (i32.const 144)) (i32.store (i32.const 264) (i32.const 4))
         (i32.store (i32.const 268) (i32.const 65536)) (i32.store (i32.const 272) (i32.const {length}))"
    )
}

#[tokio::test]
async fn output_ends_at_its_limit_in_one_value_and_in_many() {
    let one = answer(1) + &set_name(2 << 20);
    let error = error_of(&Guest { provide: &one, ..Guest::default() }).await;
    assert_eq!(error.to_string(), "plugin \"hostile\" handed over more than its 1 MiB of output");
    let error = error_of(&Guest { provide: &answer(50_000), ..Guest::default() }).await;
    assert!(matches!(error, CallError::Output { .. }), "{error}");
}

#[tokio::test]
async fn answers_that_no_environment_can_hold_are_refused() {
    let error = error_of(&Guest { provide: &answer(1), ..Guest::default() }).await;
    assert_eq!(error.to_string(), "plugin \"hostile\" answered with a variable named \"\"");
    let nul = answer(1) + &set_name(3) + "(memory.fill (i32.const 65536) (i32.const 0) (i32.const 3))";
    let error = error_of(&Guest { provide: &nul, ..Guest::default() }).await;
    assert_eq!(error.to_string(), "plugin \"hostile\" answered with a value of \"NAME\" that contains a NUL byte");
}

#[tokio::test]
async fn pointers_out_of_the_memory_and_text_that_is_none_crash_the_guest_alone() {
    let outside = answer(1) + "(i32.store (i32.const 68) (i32.const -64))";
    let error = error_of(&Guest { provide: &outside, ..Guest::default() }).await;
    assert!(matches!(error, CallError::Crashed { .. }), "{error}");
    let not_utf8 = answer(1) + &set_name(0) + "(i32.store (i32.const 144) (i32.const -1))";
    let error = error_of(&Guest { provide: &not_utf8, ..Guest::default() }).await;
    assert!(matches!(error, CallError::Crashed { .. }), "{error}");
}

#[tokio::test]
async fn a_flood_of_messages_is_cut_and_a_huge_one_ends_the_call() {
    let bench = Bench::new();
    let provide = "(local $i i32) (loop $again
        (call $log (i32.const 2) (i32.const 144) (i32.const 4))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $again (i32.lt_u (local.get $i) (i32.const 5000))))";
    let plugin = load(&bench, &Guest { imports: LOG, provide, ..Guest::default() }).await;
    let fake = Fake::default();
    plugin.provide(Call { limits: Limits { time: SLACK, ..limits() }, ..call(fake.clone()) }).await.unwrap();
    let log = fake.log.lock().unwrap().clone();
    assert_eq!(log.len(), 201);
    assert_eq!(log[0], (LogLevel::Info, "NAME".to_owned()));
    assert_eq!(log[200], (LogLevel::Warn, "4800 more messages were dropped; a call may write 200".to_owned()));

    let huge = "(drop (memory.grow (i32.const 62))) (call $log (i32.const 2) (i32.const 65536) (i32.const 2097152))";
    let error = error_of(&Guest { imports: LOG, provide: huge, ..Guest::default() }).await;
    assert_eq!(error.to_string(), "plugin \"hostile\" handed over more than its 1 MiB of output");
}

#[tokio::test]
async fn a_trap_is_named_and_what_the_guest_said_before_it_is_told() {
    let error = error_of(&Guest { provide: "unreachable", ..Guest::default() }).await;
    assert_eq!(error.to_string(), "plugin \"hostile\" crashed: wasm trap: wasm `unreachable` instruction executed");
    let provide = "(call $log (i32.const 0) (i32.const 144) (i32.const 4)) unreachable";
    let error = error_of(&Guest { imports: LOG, provide, ..Guest::default() }).await;
    assert_eq!(error.to_string(), "plugin \"hostile\" crashed: NAME");
}

#[tokio::test]
async fn a_trap_at_the_start_or_in_describe_keeps_the_plugin_out() {
    let trap = "plugin \"hostile\" crashed: wasm trap: wasm `unreachable` instruction executed";
    let start = load_error_of(&Guest { fields: "(func $begin unreachable) (start $begin)", ..Guest::default() }).await;
    assert_eq!(start, trap);
    assert_eq!(load_error_of(&Guest { describe: "unreachable", ..Guest::default() }).await, trap);
}

#[tokio::test]
async fn nothing_is_kept_from_one_call_to_the_next() {
    let bench = Bench::new();
    let provide = "(if (global.get $used) (then unreachable)) (global.set $used (i32.const 1))";
    let plugin =
        load(&bench, &Guest { fields: "(global $used (mut i32) (i32.const 0))", provide, ..Guest::default() }).await;
    for _ in 0..3 {
        plugin.provide(hostile_call()).await.unwrap();
    }
    for _ in 0..3 {
        plugin.warm_up(limits()).await;
        plugin.provide(hostile_call()).await.unwrap();
        plugin.provide(hostile_call()).await.unwrap();
    }
}

#[tokio::test]
async fn a_guest_that_computes_does_not_hold_the_thread_of_others() {
    let bench = Bench::new();
    let hostile = load(&bench, &Guest { provide: LOOP, ..Guest::default() }).await;
    let quick = bench.load_built_in("snapshot").await;
    let long = Limits { time: Duration::from_secs(20), ..limits() };
    // This runtime has one thread, which both calls share.
    tokio::select! {
        biased;
        _ = hostile.provide(Call { limits: long, ..call(Fake::default()) }) => panic!("the loop ended first"),
        changes = quick.provide(call(Fake::default().login(&[("A", b"1")]))) => {
            assert_eq!(changes.unwrap(), [Change::set("A", "1")]);
        }
    }
    bench.still_works().await; // the loop was dropped in the middle
}

#[tokio::test]
async fn a_prerequisite_reports_and_is_no_provider() {
    let bench = Bench::new();
    let plugin = bench.load_bytes("check", &Guest::default().prerequisite(), &everything()).await.unwrap();
    let report = plugin.check(hostile_call()).await.unwrap();
    assert_eq!((report.outcome, report.summary.as_str(), report.remedy), (CheckOutcome::Pass, "hostile", None));
    let error = plugin.provide(hostile_call()).await.unwrap_err();
    assert_eq!(error.to_string(), "plugin \"check\" is a prerequisite, not a provider");
    let provider = bench.load_built_in("snapshot").await;
    let error = provider.check(hostile_call()).await.unwrap_err();
    assert_eq!(error.to_string(), "plugin \"snapshot\" is a provider, not a prerequisite");
}
