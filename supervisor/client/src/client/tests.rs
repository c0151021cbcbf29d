//! The client against programs that are no agentd, or a broken one. Each answer is an error of its own kind, without a
//! panic and without an endless wait.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use agentd_api::route::call;

use super::*;
use crate::error::Absence as _;

const GOOD: &str = r#"{"status":"ok"}"#;

/// Returns an answer with this head and a body of a known length.
fn answer(status: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Returns an answer in chunks.
fn chunked(content_type: &str, chunks: &[&str]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunks = chunks.iter().map(|chunk| format!("{:x}\r\n{chunk}\r\n", chunk.len()));
    (head + &chunks.collect::<String>() + "0\r\n\r\n").into_bytes()
}

/// Runs `test` with a client of a server that answers each connection by `serve`, which gets the number of the
/// connection.
fn against<T>(serve: impl Fn(usize, &mut UnixStream) + Send + 'static, test: impl AsyncFnOnce(Client) -> T) -> T {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { return };
            let request = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            request.take_while(|line| !line.is_empty()).for_each(drop);
            serve(number, &mut stream);
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(socket);
    runtime.block_on(async { timeout(Duration::from_mins(1), test(client)).await.expect("no endless wait") })
}

/// Asks a server that sends these bytes and closes the connection.
fn asked(bytes: Vec<u8>) -> Result<(), Error> {
    against(
        move |_, stream| {
            let _ = stream.write_all(&bytes);
        },
        async |client| client.ask(call::Health {}).await.map(drop),
    )
}

#[test]
fn a_refusal_keeps_its_document_with_what_this_version_does_not_know() {
    let raw = r#"{"status":409,"code":"name-taken","detail":"taken","holder":"k3m"}"#;
    let error = asked(answer("409 Conflict", "application/problem+json", raw.as_bytes())).unwrap_err();
    let Error::Problem { problem, raw: kept } = &error else { panic!("{error:?}") };
    assert_eq!((problem.code, kept.as_ref(), error.code().as_str()), (Code::NameTaken, raw.as_bytes(), "name-taken"));
}

#[test]
fn what_is_no_answer_of_agentd_is_unreadable_or_a_lost_connection() {
    let deep = "[".repeat(100_000);
    for (what, bytes, code) in [
        ("nothing", Vec::new(), "connection-lost"),
        ("garbage", b"\x16\x03\x01\x00\xff\x00garbage\r\n\r\n".to_vec(), "connection-lost"),
        ("another protocol", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), "connection-lost"),
        ("a wrong status line", b"HTTP/1.1 two hundred\r\n\r\n".to_vec(), "connection-lost"),
        ("a wrong chunk", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n".to_vec(), "connection-lost"),
        ("a short body", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{}".to_vec(), "connection-lost"),
        ("half a document", answer("200 OK", "application/json", br#"{"status":"o"#), "unreadable-answer"),
        ("another document", answer("200 OK", "application/json", b"[1]"), "unreadable-answer"),
        ("no text", answer("200 OK", "application/json", b"{\"status\":\"\xff\"}"), "unreadable-answer"),
        ("a deep document", answer("200 OK", "application/json", deep.as_bytes()), "unreadable-answer"),
        ("a page", answer("200 OK", "text/html", b"<html>"), "unreadable-answer"),
        ("JSON as a page", answer("200 OK", "text/html", GOOD.as_bytes()), "unreadable-answer"),
        ("no body", answer("200 OK", "application/json", b""), "unreadable-answer"),
        ("no content", b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), "unreadable-answer"),
        ("no change", b"HTTP/1.1 304 Not Modified\r\n\r\n".to_vec(), "unreadable-answer"),
        ("a refusal of a proxy", answer("502 Bad Gateway", "text/html", b"<html>"), "unreadable-answer"),
        (
            "a redirection",
            b"HTTP/1.1 301 Moved\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n".to_vec(),
            "unreadable-answer",
        ),
    ] {
        let error = asked(bytes).unwrap_err();
        assert_eq!(error.code(), code, "{what}: {error:?}");
        assert!(error.to_string().contains("GET /healthz"), "{what}: {error}");
    }
}

#[test]
fn an_answer_that_is_cut_at_any_byte_is_an_error() {
    for whole in [
        answer("200 OK", "application/json", GOOD.as_bytes()),
        chunked("application/json", &["{\"status\"", ":\"ok\"}"]),
    ] {
        for length in 0..whole.len() {
            let error = asked(whole[..length].to_vec()).unwrap_err();
            assert!(matches!(error, Error::Broken { .. }), "{length}: {error:?}");
        }
        asked(whole).unwrap();
    }
}

#[test]
fn a_stream_that_is_cut_at_any_byte_gives_whole_lines_and_an_error() {
    let whole = chunked("application/x-ndjson", &["{\"a\":1}\n{\"a\"", ":2}\n", "{\"a\":3}\n"]);
    let read = |bytes: Vec<u8>| {
        against(
            move |_, stream| {
                let _ = stream.write_all(&bytes);
            },
            async |client| {
                let mut body = match client.stream(&Call::Version {}).await {
                    Ok(body) => body,
                    Err(error) => return (0, Err(error)),
                };
                let mut count = 0;
                loop {
                    match body.next().await {
                        Ok(Some(line)) => {
                            count += 1;
                            assert_eq!(line, format!("{{\"a\":{count}}}").as_bytes());
                        }
                        Ok(None) => return (count, Ok(())),
                        Err(error) => return (count, Err(error)),
                    }
                }
            },
        )
    };
    for length in 0..whole.len() {
        let (_, result) = read(whole[..length].to_vec());
        assert!(matches!(result, Err(Error::Broken { .. })), "{length}: {result:?}");
    }
    let (count, result) = read(whole);
    assert!(count == 3 && result.is_ok(), "{result:?}");
    let (_, page) = read(answer("200 OK", "text/html", b"<html>"));
    assert_eq!(page.unwrap_err().code(), "unreadable-answer");
}

/// Writes without an end, until the client closes the connection.
fn endless(begin: &'static [u8], more: &'static [u8]) -> Result<(), Error> {
    let more = more.repeat(4096);
    against(
        move |_, stream| {
            let _ = stream.write_all(begin);
            while stream.write_all(&more).is_ok() {}
        },
        async |client| client.ask(call::Health {}).await.map(drop),
    )
}

#[test]
fn an_answer_without_an_end_is_given_up() {
    for (begin, more) in [
        (&b"HTTP/1.1 200 OK\r\n"[..], &b"x-header: y\r\n"[..]),
        (b"HTTP/1.1 200 OK\r\nx-header: ", b"yyyy"),
        (b"HTTP/1.1 200 ", b"OK"),
        (b"", b"\r\n"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;", b"extension"),
    ] {
        let error = endless(begin, more).unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{:?}: {error:?}", String::from_utf8_lossy(begin));
    }
    let error = endless(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", b"[1,2],").unwrap_err();
    assert!(matches!(error, Error::TooLong { limit: LONGEST, .. }), "{error:?}");
}

#[test]
fn silence_and_single_bytes_end_with_the_time_limit() {
    let whole = answer("200 OK", "application/json", GOOD.as_bytes());
    for begin in [0, 5, whole.len() - 1] {
        let begin = whole[..begin].to_vec();
        let error = against(
            move |_, stream| {
                let _ = stream.write_all(&begin);
                // Until the client closes the connection.
                let _ = BufReader::new(&mut *stream).lines().next();
            },
            async |client| {
                let client = client.within(Duration::from_millis(100));
                let error = client.ask(call::Health {}).await.map(drop).unwrap_err();
                let streamed = client.stream(&Call::Version {}).await.map(drop).unwrap_err();
                assert!(matches!(streamed, Error::Silent { .. } | Error::Answer { .. }), "{streamed:?}");
                error
            },
        );
        assert_eq!(error.code(), "no-answer", "{error:?}");
    }
    let error = endless_drops().unwrap_err();
    assert_eq!(error.code(), "no-answer", "{error:?}");
}

/// Sends a byte every few milliseconds.
fn endless_drops() -> Result<(), Error> {
    against(
        |_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n");
            while stream.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        },
        async |client| client.within(Duration::from_millis(200)).ask(call::Health {}).await.map(drop),
    )
}

#[test]
fn a_call_that_was_refused_for_lack_of_room_is_repeated_and_no_other() {
    let busy = r#"{"status":503,"code":"too-many-connections","detail":"all are in use"}"#;
    against(
        move |number, stream| {
            let bytes = match number {
                0 => answer("503 Busy", "application/problem+json", busy.as_bytes()),
                2 => Vec::new(),
                _ => answer("200 OK", "application/json", GOOD.as_bytes()),
            };
            let _ = stream.write_all(&bytes);
        },
        async |client| {
            client.ask(call::Health {}).await.unwrap();
            let broken = client.ask(call::Health {}).await.unwrap_err();
            assert!(broken.is_absence() && matches!(broken, Error::Broken { .. }), "{broken:?}");
        },
    );
}

#[test]
fn a_read_is_patient_while_the_daemon_is_away() {
    let asked = against(
        |number, stream| {
            if number >= 3 {
                let _ = stream.write_all(&answer("200 OK", "application/json", GOOD.as_bytes()));
            }
        },
        async |client| crate::patiently(async || client.ask(call::Health {}).await).await,
    );
    assert_eq!(asked.unwrap().raw.as_ref(), GOOD.as_bytes());
}

#[test]
fn a_forwarded_request_has_the_authorisation_of_the_client_and_nothing_of_a_web_page() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let answer = "HTTP/1.1 418 x\r\nset-cookie: a=b\r\netag: \"t\"\r\ncontent-length: 2\r\n\r\nhi";
        stream.write_all(answer.as_bytes()).unwrap();
        head.join("\n").to_ascii_lowercase()
    });
    let client = Client::by(Way::Tcp { authority: authority.clone(), token: "secret".to_owned() });
    let request = Request::patch("http://page.example/v1/sessions/k3m?x=1");
    let request = request.header("cookie", "c").header("origin", "http://page.example").header("if-match", "\"7\"");
    let request = request.header("host", "page.example").header("authorization", "Bearer page");
    let request = request.header("connection", "upgrade").header("upgrade", "websocket");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(async {
        let request = request.body(Full::new(Bytes::from_static(b"{}"))).unwrap();
        collected(client.forward(request).await.unwrap()).await
    });
    assert_eq!((answer.0.as_u16(), answer.1.contains_key("set-cookie"), answer.2.as_ref()), (418, false, &b"hi"[..]));
    assert_eq!(answer.1["etag"], "\"t\"");
    let head = server.join().unwrap();
    assert!(head.starts_with("patch /v1/sessions/k3m?x=1 http/1.1\n"), "{head}");
    for line in [&format!("host: {authority}"), "authorization: bearer secret", "if-match: \"7\"", "content-length: 2"]
    {
        assert_eq!(head.matches(line).count(), 1, "{line}: {head}");
    }
    for word in ["cookie", "origin", "page.example", "bearer page", "upgrade"] {
        assert!(!head.contains(word), "{word}: {head}");
    }
}

/// Reads a whole response.
async fn collected(response: Response<Incoming>) -> (StatusCode, hyper::HeaderMap, Bytes) {
    let (head, body) = response.into_parts();
    (head.status, head.headers, body.collect().await.unwrap().to_bytes())
}
