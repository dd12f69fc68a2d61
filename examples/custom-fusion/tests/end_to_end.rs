//! The program with the extension compiles and serves a model, with the tokens of the program without.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use precast_cli::Precast;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

const CUSTOM: &str = env!("CARGO_BIN_EXE_custom-fusion");
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/qwen3_next");
const OPTIONS: &str = "--graph-bs 1 2 --prefill-chunks 16 --max-context 128 --dtype f32";

/// A folder of this test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("custom-fusion-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn custom(line: &str) -> String {
    let output = Command::new(CUSTOM).args(line.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn stock(line: &str) -> Result<(), String> {
    let words = std::iter::once("precast").chain(line.split_whitespace()).map(Into::into);
    let command = precast_cli::parse(words).unwrap().command;
    Precast::default().run(command).map_err(|e| format!("{e:#}"))
}

/// The stock program's artifact and this one's.
fn artifacts(folder: &Folder) -> [String; 2] {
    let (plain, fused) = (folder.join("plain"), folder.join("fused"));
    stock(&format!("compile --model {MODEL} --out {plain} {OPTIONS}")).unwrap();
    custom(&format!(
        "compile --model {MODEL} --out {fused} {OPTIONS} --require-match fuse-gated-output=2"
    ));
    [plain, fused]
}

#[test]
fn tokens_are_those_of_the_stock_program() {
    let folder = Folder::new("tokens");
    let artifacts = artifacts(&folder);
    for prompt in ["What", "12+30"] {
        let answer = |dir: &String| {
            custom(&format!("generate {dir} --raw --prompt {prompt} --max-tokens 24"))
        };
        let [plain, fused] = artifacts.each_ref().map(answer);
        assert_eq!(fused, plain);
        assert!(!plain.trim().is_empty());
    }
    let [plain, fused] = artifacts;
    let said = custom(&format!("inspect {fused}"));
    assert!(
        said.contains("extension custom-fusion") && said.contains("ext.gated_output"),
        "{said}"
    );
    assert!(!custom(&format!("inspect {plain}")).contains("ext."));

    let refused = stock(&format!("generate {fused} --raw --prompt What")).unwrap_err();
    assert!(
        refused.contains("`ext.gated_output`") && refused.contains("`custom-fusion`"),
        "{refused}"
    );
    assert!(refused.contains("precast compile"), "{refused}");

    // Other sources are another extension.
    let manifest = Path::new(&fused).join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    // The first entry is the checksum of all that follows.
    let (_, text) = text.split_once(',').unwrap();
    let at = text.find("\"extensions\"").unwrap();
    let hash = at + text[at..].find("\"hash\": \"").unwrap() + "\"hash\": \"".len();
    let other = if text[hash..].starts_with('0') { "1" } else { "0" };
    let changed = format!("{{{}{other}{}", &text[..hash], &text[hash + 1..]);
    fs::write(&manifest, precast_artifact::seal_manifest(&changed)).unwrap();
    let output = Command::new(CUSTOM).args(["generate", &fused, "--raw", "--prompt", "x"]).output();
    let error = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(error.contains("another version of the extension `custom-fusion`"), "{error}");
}

/// The pass changes no bit: the body is the ops themselves.
#[test]
fn opt_checks_and_names_the_pass() {
    let folder = Folder::new("opt");
    let file = folder.join("layer.ir");
    fs::write(
        &file,
        "func @f(%x: f32[T,8], %g: f32[T,8]) {\n  %s = sigmoid %g : f32[T,8]\n  \
         %y = mul %x, %s : f32[T,8]\n  return %y\n}\n",
    )
    .unwrap();
    let out = custom(&format!("opt {file} --check-numerics"));
    assert!(out.starts_with("fused @gated_output("), "{out}");
    assert!(custom(&format!("opt {file} --dot")).contains("fused gated_output"));
    let out = custom(&format!("opt {file} --disable-pass fuse-gated-output"));
    assert!(!out.contains("gated_output"), "{out}");
    assert!(stock(&format!("opt {file} --passes fuse-gated-output")).is_err());
}

/// A server that is stopped when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn it_serves() {
    let folder = Folder::new("serve");
    let [_, fused] = artifacts(&folder);
    let mut command = Command::new(CUSTOM);
    command.args(["serve", &fused, "--port", "0"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = Server(command.spawn().unwrap());
    let mut log = BufReader::new(server.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let line = log.find(|l| l.contains("http://")).expect("the server says where it listens");
    let (_, rest) = line.split_once("http://").unwrap();
    let address = &rest[..rest.find([' ', '/', '"']).unwrap_or(rest.len())];
    let ready = line.contains("ready to roll") || log.any(|l| l.contains("ready to roll"));
    assert!(ready);
    std::thread::spawn(move || log.for_each(drop));

    let body = r#"{"prompt": "What", "max_tokens": 4, "temperature": 0}"#;
    let mut stream = TcpStream::connect(address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    write!(stream, "{head}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":4"),
        "{answer}"
    );
}
