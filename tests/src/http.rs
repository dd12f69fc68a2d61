//! A server under test, and requests to it.

use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

/// A running `precast serve`, stopped when dropped.
pub struct Server {
    child: Child,
    base: String,
    agent: ureq::Agent,
    log: Arc<Mutex<String>>,
}

/// How long a server may take to start; generous, since test machines are busy, and one for Ascend
/// compiles its kernels first.
const START: Duration = Duration::from_secs(180);

impl Server {
    /// Serves `artifact` on a free port; `options` are words as on the command line.
    ///
    /// # Panics
    /// When the server does not come up.
    pub fn start(program: &str, artifact: &Path, options: &str) -> Self {
        let mut command = crate::command(program);
        command.arg("serve").arg(artifact).args(["--port", "0"]);
        Self::spawn(command.args(options.split_whitespace()))
    }

    /// Runs a command that starts a server and waits until it says that it is ready.
    ///
    /// # Panics
    /// When the server does not come up.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stderr = child.stderr.take().expect("stderr is piped");
        let (ready, is_ready) = mpsc::channel();
        let log = Arc::<Mutex<String>>::default();
        let written = Arc::clone(&log);
        // Reads to the end, so that the server never waits for somebody to read its log.
        std::thread::spawn(move || {
            let mut address = None;
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("http://") {
                    let end = rest.find([' ', '/', '"']).unwrap_or(rest.len());
                    address = Some(format!("http://{}", &rest[..end]));
                }
                if line.contains("ready to roll") {
                    let _ = ready.send(Ok(address.clone()));
                }
                let mut log = written.lock().expect("no holder panics");
                log.push_str(&line);
                log.push('\n');
            }
            let _ = ready.send(Err("its log has ended"));
        });
        let base = match is_ready.recv_timeout(START) {
            Ok(Ok(Some(address))) => address,
            other => {
                let _ = child.kill();
                let log = log.lock().expect("no holder panics");
                panic!("the server did not come up: {other:?}\n{log}");
            }
        };
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(120)))
            .build()
            .into();
        Self { child, base, agent, log }
    }

    /// Where it listens: `http://127.0.0.1:PORT`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("no holder panics").clone()
    }

    /// Kills the process, as the system does that has no memory left.
    ///
    /// # Panics
    /// When it has ended already.
    pub fn kill(&mut self) {
        self.child.kill().expect("the process runs");
        self.wait();
    }

    /// Waits for the process to end.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().expect("the process can be waited for")
    }

    /// GET, as status and text.
    pub fn get(&self, path: &str) -> (u16, String) {
        let mut answer =
            self.agent.get(format!("{}{path}", self.base)).call().expect("the server answers");
        let text = answer.body_mut().read_to_string().expect("the answer is text");
        (answer.status().as_u16(), text)
    }

    /// POST, as status and JSON.
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.post_text(path, body);
        let json = serde_json::from_str(&text)
            .unwrap_or_else(|e| panic!("{path} answered {status} {text:?}: {e}"));
        (status, json)
    }

    /// POST that must succeed.
    pub fn ask(&self, path: &str, body: &Value) -> Value {
        let (status, json) = self.post(path, body);
        assert_eq!(status, 200, "{path}: {json}");
        json
    }

    /// POST, as status and text; a stream is read to its end.
    pub fn post_text(&self, path: &str, body: &Value) -> (u16, String) {
        let mut answer = self
            .agent
            .post(format!("{}{path}", self.base))
            .send_json(body)
            .expect("the server answers");
        let text = answer
            .body_mut()
            .with_config()
            .limit(256 << 20)
            .read_to_string()
            .expect("the answer is text");
        (answer.status().as_u16(), text)
    }

    /// POST whose answer is read by the caller, who may leave early.
    pub fn post_stream(&self, path: &str, body: &Value) -> impl Read + use<> {
        self.agent
            .post(format!("{}{path}", self.base))
            .send_json(body)
            .expect("the server answers")
            .into_body()
            .into_reader()
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let line = text
            .lines()
            .find(|l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
        line.and_then(|l| l.rsplit(' ').next())
            .and_then(|v| v.parse().ok())
            .unwrap_or_else(|| panic!("no metric {name}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
