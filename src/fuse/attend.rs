//! From an operation under way to its answer: polls it once on the thread that read the request, and spawns it only when
//! it has to wait.
//!
//! What is ready is answered at once and in order of arrival (a cache hit costs no task and no wake-up); what waits
//! never holds a thread that reads requests, and becomes a task only when it is woken, on the thread that wakes it: that
//! is mostly the one that has just read from the network what the operation waits for, so that no other is woken. Once begun an operation runs to its end. Its caller does not wait for ever:
//! past the deadline it gets EIO and the log one line, and a caller that is being killed gets EINTR, for the transport
//! cannot deliver interrupts and the kernel would keep the dying process until the reply.

use super::convert::{self, Loudness};
use super::trace;
use super::transport::{Answer, Origin, Reply};
use crate::base::{Errno, Ino, Outcome};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// An operation under way.
pub type Work = Pin<Box<dyn Future<Output = Outcome<Answer>> + Send>>;

/// How often a waiting request looks whether its caller still waits.
const LOOK_AT_CALLER: Duration = Duration::from_secs(1);
/// Operations that wait for their first wake-up are looked through at most this often within a deadline.
const LOOKS_IN_DEADLINE: u32 = 4;

/// One operation that is over, for metrics and the access log.
#[derive(Clone, Copy, Debug)]
pub struct Finished<'a> {
    pub origin: Origin,
    pub operation: &'static str,
    /// `(arguments)` and `: (result)`; present only when somebody reads.
    pub text: Option<(&'a str, &'a str)>,
    /// Bytes read or written.
    pub bytes: usize,
    pub errno: Option<Errno>,
    pub took: Duration,
}

/// Who wants to know about operations.
pub trait Observer: Send + Sync {
    /// Whether arguments and results are wanted as text. Asked for every request, so no more than an atomic load.
    fn reads(&self) -> bool;
    fn finished(&self, operation: Finished<'_>);
}

/// What is known of a request from beginning to end.
pub struct Trace {
    pub origin: Origin,
    pub operation: &'static str,
    pub ino: Option<Ino>,
    /// Present only when somebody reads.
    pub arguments: Option<String>,
    began: Instant,
}

impl Trace {
    pub fn new(origin: Origin, operation: &'static str, ino: Option<Ino>) -> Trace {
        Trace { origin, operation, ino, arguments: None, began: Instant::now() }
    }

    /// For log lines; 0 when the request is about a name.
    fn ino(&self) -> u64 {
        self.ino.map_or(0, |ino| ino.0)
    }
}

/// Sees operations through.
pub struct Attendant {
    runtime: tokio::runtime::Handle,
    observer: Arc<dyn Observer>,
    deadline: Duration,
    waiting: AtomicUsize,
    /// Told when nothing waits any more.
    idle: Notify,
    /// Operations that were not ready when they were polled first, and some that were woken since.
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
}

/// An operation before its first wake-up.
#[derive(Default)]
struct Sleeper(Mutex<Sleep>);

#[derive(Default)]
enum Sleep {
    /// It is being polled.
    #[default]
    NotYet,
    /// With what makes it a task.
    Asleep(Box<dyn FnOnce() + Send>),
    Woken,
}

impl Sleeper {
    fn is_woken(&self) -> bool {
        matches!(*self.0.lock(), Sleep::Woken)
    }

    /// The poll found it pending. A wake-up that came during the poll counts.
    fn lie_down(&self, become_task: impl FnOnce() + Send + 'static) {
        let mut sleep = self.0.lock();
        match &*sleep {
            Sleep::NotYet => *sleep = Sleep::Asleep(Box::new(become_task)),
            Sleep::Asleep(_) | Sleep::Woken => {
                drop(sleep);
                become_task();
            }
        }
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Sleeper>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Sleeper>) {
        let slept = std::mem::replace(&mut *self.0.lock(), Sleep::Woken);
        if let Sleep::Asleep(become_task) = slept {
            become_task();
        }
    }
}

/// Counts one operation that waits.
struct Waiting(Arc<Attendant>);

impl Waiting {
    fn new(attendant: Arc<Attendant>) -> Waiting {
        attendant.waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(attendant)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

impl Attendant {
    pub fn new(runtime: tokio::runtime::Handle, observer: Arc<dyn Observer>, deadline: Duration) -> Arc<Attendant> {
        let (waiting, idle, sleepers) = Default::default();
        let attendant = Arc::new(Attendant { runtime, observer, deadline, waiting, idle, sleepers });
        attendant
            .runtime
            .spawn(wake_overdue(Arc::downgrade(&attendant), LOOK_AT_CALLER.min(deadline / LOOKS_IN_DEADLINE)));
        attendant
    }

    /// Lets the calling thread start tasks and timers.
    pub fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
        self.runtime.enter()
    }

    pub fn wants_text(&self) -> bool {
        self.observer.reads()
    }

    /// Operations that wait for something now.
    pub fn in_flight(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Waits until nothing is under way, at most for `grace`; answers how many operations are left.
    pub async fn drain(&self, grace: Duration) -> usize {
        let end = Instant::now() + grace;
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable();
            let left = self.in_flight();
            if left == 0 || tokio::time::timeout_at(end, idle).await.is_err() {
                return left;
            }
        }
    }

    /// Polls once; what is not ready goes on as a task once it is woken, or has waited for a while.
    pub fn attend<R: Reply>(self: &Arc<Self>, trace: Trace, mut work: Work, reply: R) {
        let sleeper = Arc::<Sleeper>::default();
        let waker = Waker::from(sleeper.clone());
        match work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => self.finish(trace, reply, outcome),
            Poll::Pending => {
                let waiting = Waiting::new(self.clone());
                self.remember(&sleeper);
                sleeper.lie_down(move || {
                    let runtime = waiting.0.runtime.clone();
                    runtime.spawn(async move { waiting.0.wait(trace, work, reply).await });
                });
            }
        }
    }

    fn remember(&self, sleeper: &Arc<Sleeper>) {
        let mut sleepers = self.sleepers.lock();
        if sleepers.len() == sleepers.capacity() {
            sleepers.retain(|sleeper| !sleeper.is_woken());
        }
        sleepers.push(sleeper.clone());
    }

    /// As a task, until it is over.
    async fn wait<R: Reply>(&self, trace: Trace, mut work: Work, reply: R) {
        let deadline = trace.began + self.deadline;
        let (operation, ino, origin) = (trace.operation, trace.ino(), trace.origin);
        let errno = loop {
            let look = deadline.min(Instant::now() + LOOK_AT_CALLER);
            match tokio::time::timeout_at(look, work.as_mut()).await {
                Ok(outcome) => return self.finish(trace, reply, outcome),
                Err(_) if Instant::now() >= deadline => {
                    let seconds = trace.began.elapsed().as_secs();
                    tracing::warn!(operation, ino, seconds, request = origin.unique, "request passed its deadline");
                    break Errno::EIO;
                }
                Err(_) if is_dying(origin.pid) => break Errno::EINTR,
                Err(_) => {}
            }
        };
        self.finish(trace, reply, Err(errno.into()));
        // The caller is gone. What was begun comes to its end all the same, and does not fail unheard.
        if let Err(stop) = work.await {
            tracing::warn!(operation, ino, request = origin.unique, %stop, "operation failed after its caller left");
        }
    }

    /// Sends the answer and tells whoever wants to know.
    pub fn finish<R: Reply>(&self, trace: Trace, reply: R, outcome: Outcome<Answer>) {
        let mut result = String::new();
        let (bytes, errno) = match &outcome {
            Ok(answer) => {
                if trace.arguments.is_some() {
                    result = trace::result(answer);
                }
                match answer {
                    Answer::Data(payload) => (payload.len(), None),
                    Answer::Written(bytes) => (*bytes as usize, None),
                    Answer::NoNode(_) => (0, Some(Errno::ENOENT)),
                    _ => (0, None),
                }
            }
            Err(stop) => {
                let (errno, loudness) = convert::refusal(stop);
                let (operation, ino, request) = (trace.operation, trace.ino(), trace.origin.unique);
                match loudness {
                    Loudness::Answer => tracing::debug!(operation, ino, request, %errno),
                    Loudness::Warning => tracing::warn!(operation, ino, request, %stop),
                    Loudness::Error => tracing::error!(operation, ino, request, %stop),
                }
                (0, Some(errno))
            }
        };
        match (outcome, errno) {
            (Ok(answer), _) => reply.answer(answer),
            (Err(stop), errno) => reply.refuse(errno.unwrap_or_else(|| stop.errno())),
        }
        let Trace { origin, operation, arguments, began, .. } = trace;
        let text = arguments.as_deref().map(|arguments| (arguments, result.as_str()));
        self.observer.finished(Finished { origin, operation, text, bytes, errno, took: began.elapsed() });
    }
}

/// Makes tasks of operations that have slept for one interval or two: a task looks after its caller and its deadline.
async fn wake_overdue(attendant: Weak<Attendant>, interval: Duration) {
    let mut older = Vec::new();
    loop {
        tokio::time::sleep(interval).await;
        let Some(attendant) = attendant.upgrade() else { return };
        let newer = std::mem::take(&mut *attendant.sleepers.lock());
        std::mem::replace(&mut older, newer).into_iter().for_each(Sleeper::wake);
    }
}

/// What /proc tells about a process; `None` when it is gone or belongs to another process space.
pub fn status_of(pid: u32) -> Option<String> {
    // The kernel sends 0 for processes we cannot see.
    if pid == 0 {
        return None;
    }
    std::fs::read_to_string(format!("/proc/{pid}/status")).ok()
}

/// Whether a process has been killed and only waits for our reply.
fn is_dying(pid: u32) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    status_of(pid).is_some_and(|status| pending_signals(&status) & KILL != 0)
}

/// Whether a process has a signal that it would act upon.
pub fn is_interrupted(pid: u32) -> bool {
    status_of(pid).is_some_and(|status| acts_upon(&status))
}

fn acts_upon(status: &str) -> bool {
    pending_signals(status) & !signal_mask(status, "SigBlk:") & !signal_mask(status, "SigIgn:") != 0
}

fn pending_signals(status: &str) -> u64 {
    signal_mask(status, "SigPnd:") | signal_mask(status, "ShdPnd:")
}

fn signal_mask(status: &str, field: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix(field));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    /// Remembers what it was told, and in which thread.
    #[derive(Default)]
    struct Heard(Mutex<Vec<(&'static str, Option<Errno>, usize)>>);

    impl Observer for Heard {
        fn reads(&self) -> bool {
            false
        }

        fn finished(&self, operation: Finished<'_>) {
            self.0.lock().push((operation.operation, operation.errno, operation.bytes));
        }
    }

    struct Sent(oneshot::Sender<Result<Answer, Errno>>);

    impl Reply for Sent {
        fn answer(self, answer: Answer) {
            let _ = self.0.send(Ok(answer));
        }

        fn refuse(self, errno: Errno) {
            let _ = self.0.send(Err(errno));
        }
    }

    fn trace() -> Trace {
        Trace::new(Origin { unique: 1, uid: 0, gid: 0, pid: 0 }, "read", Some(Ino(2)))
    }

    fn attendant(deadline: Duration) -> (Arc<Attendant>, Arc<Heard>) {
        let heard = Arc::new(Heard::default());
        (Attendant::new(tokio::runtime::Handle::current(), heard.clone(), deadline), heard)
    }

    const LONG: Duration = Duration::from_secs(300);

    #[tokio::test]
    async fn what_is_ready_is_answered_before_attend_returns() {
        let (attendant, heard) = attendant(LONG);
        let (send, mut sent) = oneshot::channel();
        attendant.attend(trace(), Box::pin(async { Ok(Answer::Written(7)) }), Sent(send));
        assert!(matches!(sent.try_recv(), Ok(Ok(Answer::Written(7)))));
        assert_eq!((attendant.in_flight(), heard.0.lock().as_slice()), (0, &[("read", None, 7)][..]));
    }

    #[tokio::test]
    async fn what_waits_is_answered_by_a_task_and_drained() {
        let (attendant, heard) = attendant(LONG);
        let (send, mut sent) = oneshot::channel();
        let (go, wait) = oneshot::channel::<()>();
        let work = Box::pin(async move {
            wait.await.expect("told to go on");
            Err(Errno::ENOENT.into())
        });
        attendant.attend(trace(), work, Sent(send));
        assert!(sent.try_recv().is_err());
        assert_eq!((attendant.in_flight(), attendant.drain(Duration::from_millis(5)).await), (1, 1));
        go.send(()).unwrap();
        assert!(matches!(sent.await, Ok(Err(Errno::ENOENT))));
        assert_eq!(attendant.drain(LONG).await, 0);
        assert_eq!(heard.0.lock().as_slice(), &[("read", Some(Errno::ENOENT), 0)]);
    }

    #[tokio::test]
    async fn what_nobody_wakes_is_looked_at_all_the_same() {
        let (attendant, _) = attendant(Duration::from_millis(200));
        let (send, sent) = oneshot::channel();
        let mut polls = 0;
        let work = std::future::poll_fn(move |_| {
            polls += 1;
            if polls == 1 { Poll::Pending } else { Poll::Ready(Ok(Answer::Written(polls))) }
        });
        attendant.attend(trace(), Box::pin(work), Sent(send));
        assert!(matches!(sent.await, Ok(Ok(Answer::Written(2)))));
    }

    #[tokio::test]
    async fn those_who_slept_and_were_woken_are_forgotten() {
        let (attendant, _) = attendant(LONG);
        for _ in 0..1000 {
            let (send, sent) = oneshot::channel();
            let (go, wait) = oneshot::channel();
            let work = Box::pin(async move { wait.await.map_err(|_| Errno::EIO.into()) });
            attendant.attend(trace(), work, Sent(send));
            go.send(Answer::Done).ok().unwrap();
            assert!(matches!(sent.await, Ok(Ok(Answer::Done))));
        }
        assert!(attendant.sleepers.lock().len() < 10);
    }

    #[tokio::test]
    async fn past_the_deadline_the_caller_gets_an_error_and_the_operation_its_end() {
        let (attendant, heard) = attendant(Duration::from_millis(20));
        let (send, sent) = oneshot::channel();
        let (go, wait) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let work = Box::pin(async move {
            wait.await.expect("told to go on");
            let _ = done.send(());
            Ok(Answer::Done)
        });
        attendant.attend(trace(), work, Sent(send));
        assert!(matches!(sent.await, Ok(Err(Errno::EIO))));
        go.send(()).unwrap();
        ended.await.expect("the operation was not dropped");
        assert_eq!(attendant.drain(LONG).await, 0);
        assert_eq!(heard.0.lock().as_slice(), &[("read", Some(Errno::EIO), 0)], "reported once");
    }

    #[test]
    fn only_signals_that_would_be_acted_upon_interrupt() {
        let status = |pending: u64, blocked: u64, ignored: u64| {
            format!("Name:\tx\nSigPnd:\t0\nShdPnd:\t{pending:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n")
        };
        assert!(acts_upon(&status(2, 0, 0)));
        assert!(!acts_upon(&status(2, 2, 0)));
        assert!(!acts_upon(&status(2, 0, 2)));
        assert!(!acts_upon(&status(0, 0, 0)));
        assert!(!is_interrupted(std::process::id()));
    }
}
