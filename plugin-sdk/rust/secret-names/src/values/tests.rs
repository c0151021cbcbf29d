use super::*;

#[test]
fn a_url_with_a_password_is_a_secret_and_one_with_a_user_is_none() {
    for (value, expected) in [
        ("http://user:hunter22@proxy.example:3128", Some("hunter22")),
        ("postgres://u:p:w@h/db", Some("p:w")),
        ("a,b http://x/ http://u:pw@h", Some("pw")),
        ("https://ghp_0123456789abcdefghij@github.com/x", Some("ghp_0123456789abcdefghij")),
        ("http://proxy.example:3128", None),
        ("ssh://git@github.com/x", None),
        ("https://h/a:b@c", None),
        ("http://user:@h", None),
        ("://", None),
    ] {
        assert_eq!(password(value.as_bytes()), expected.map(str::as_bytes), "{value}");
    }
}

#[test]
fn a_connection_string_is_a_secret_where_a_password_stands_in_it() {
    assert_eq!(password(b"Server=s;Uid=u;Pwd=hunter22;"), Some(&b"hunter22"[..]));
    assert_eq!(password(b"host=h password=hunter22"), Some(&b"hunter22"[..]));
    assert_eq!(password(b"OLDPWD=/tmp"), None);
    assert_eq!(password(b"password="), None);
}

#[test]
fn an_option_with_the_name_of_a_secret_and_a_channel_with_a_token_are_secrets() {
    for (value, expected) in [
        ("-Xmx1g -Dhttps.proxyPassword=hunter22 -Da=b", Some("hunter22")),
        ("-Djavax.net.ssl.trustStorePassword=changeit", Some("changeit")),
        ("--verbose --api-key=hunter22", Some("hunter22")),
        ("-var=db_password=hunter22", Some("hunter22")),
        ("-Djavax.net.ssl.trustStore=/etc/ssl/java", None),
        ("-DTOKEN= -Da.keyStoreType=PKCS12", None),
        ("a-password=x", Some("x")),
        ("https://conda.example/t/co-0123-4567/main", Some("co-0123-4567")),
        ("https://conda.example/t/x/main", None),
    ] {
        assert_eq!(password(value.as_bytes()), expected.map(str::as_bytes), "{value}");
    }
    assert!(is_secret_value(b"experimental-features = flakes\naccess-tokens = git.example=hunter22"));
}

#[test]
fn tokens_and_private_keys_are_known_by_their_form() {
    for secret in [
        "sk-ant-0123456789abcdef",
        "ghp_0123456789abcdefghij",
        "-----BEGIN RSA PRIVATE KEY-----\nx",
        "npm_0123456789abcdef",
    ] {
        assert!(is_secret_value(secret.as_bytes()), "{secret}");
    }
    for secret in ["id=AKIAIOSFODNN7EXAMPLE", "use glpat-a1a1a1a1a1a1a1a1a1a1, please"] {
        assert!(is_secret_value(secret.as_bytes()), "{secret}");
    }
    for plain in [
        "/usr/lib/AKIAIOSFODNN7EXAMPLE2",
        "/opt/sk-learn-0123456789012345678901234567890123456789",
        "",
        "sk-learn",
        "npm_config",
        "hf_hub and more words than a token has",
        "-----BEGIN CERTIFICATE-----\nx",
    ] {
        assert!(!is_secret_value(plain.as_bytes()), "{plain}");
    }
}

/// Secrets. Each contains `hunter22` as the secret part.
const SECRETS: &[&str] = &[
    "https://kim:hun/ter22@proxy.corp.invalid:3128",
    "https://3x4mpl3t0k3nhunter22@pypi.corp.invalid/simple",
    "kim:hunter22@proxy.corp.invalid:3128",
    "kim:hunter22@tcp(db:3306)/app",
    ":pserver:kim:hunter22@cvs.corp.invalid:/root",
    "jdbc:oracle:thin:kim/hunter22@//db.corp.invalid:1521/app",
    "jdbc:sqlserver://db;user=sa;password=hunter22",
    "jdbc:postgresql://db/app?user=kim&password=hunter22&ssl=true",
    "https://files.corp.invalid/c?sv=2022-11-02&se=2030-01-01&sr=c&sp=r&sig=hunter22hunter22hunter22%3D",
    "https://b.s3.amazonaws.com/k?X-Amz-Signature=hunter22hunter22",
    "https://git.corp.invalid/api?private_token=hunter22",
    "https://hooks.slack.com/services/T000/B000/hunter22hunter22hunter22",
    "Endpoint=sb://b.corp.invalid/;SharedAccessKeyName=Root;SharedAccessKey=hunter22=",
    "BlobEndpoint=https://b.corp.invalid;SharedAccessSignature=sv=2022&sig=hunter22hunter22",
    "InstrumentationKey=hunter22;IngestionEndpoint=https://x.corp.invalid",
    "http://cache.corp.invalid|bearer-token=hunter22|layout=bazel",
    "-Dpassword=aHVudGVyMjI=",
    "-Xmx1g -Dpass=hunter22",
    "-Drepo.pwd=hunter22",
    "-PnexusPw=hunter22",
    "-javaagent:/opt/agent.jar=license_key=hunter22,app=x",
    "-DdbUrl=jdbc:mysql://db/app?user=kim&password=hunter22",
    "-backend-config password=hunter22",
    "-var db_password=hunter22",
    "--username kim --password hunter22",
    "-storepass hunter22 -keystore /opt/x.jks",
    "-s -u kim:hunter22 --fail",
    "-H 'Authorization: Bearer hunter22hunter22hunter22'",
    "-H \"X-Api-Key: hunter22\"",
    "Bearer hunter22hunter22hunter22",
    "Basic a2ltOmh1bnRlcjIy",
    "//registry.corp.invalid/:_authToken=hunter22",
    "registry=https://npm.corp.invalid/\n_auth = hunter22",
    "[pypi]\nusername = kim\npassword = hunter22",
    "machine git.corp.invalid login kim password hunter22",
    "machine git.corp.invalid\nlogin kim\npassword hunter22\n",
    "{\"auths\":{\"r.corp.invalid\":{\"auth\":\"a2ltOmh1bnRlcjIy\"}}}",
    "{\\\"password\\\":\\\"hunter22\\\"}",
    "users:\n- name: kim\n  user:\n    token: hunter22",
    "{name: kim, token: hunter22}",
    "<server><username>kim</username><password>hunter22</password></server>",
    "{\"type\":\"service_account\",\"private_key\":\"-----BEGIN PRIVATE KEY-----\\nhunter22\\n-----END PRIVATE \
        KEY-----\\n\"}",
    "key: -----BEGIN OPENSSH PRIVATE KEY-----\\nhunter22",
    "AGE-SECRET-KEY-1HUNTER22",
    "hvs.hunter22hunter22hunter22hunter22",
    "dapi0123456789abcdef0123456789abcdef",
    "see glsa_0123456789abcdefghijABCDEFGHIJ01_0a1b2c3d",
];

/// Values that look like secrets and are not. Tools need them.
const PLAIN: &[&str] = &[
    "27000@licence.corp.invalid:1717@backup.corp.invalid",
    "/opt/a:/opt/b:~/c",
    "/nix/store/0c0m1jqj7yzr0wd6s1xzkqlrx3l2bdkn-gcc-13.2.0/bin",
    "d095cb3e1f0a4b5c6d7e8f90123456789abcdef0",
    "123e4567-e89b-12d3-a456-426614174000",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "registry.corp.invalid/team/image:1.2@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "ssh://git@git.corp.invalid:7999/team/repo.git",
    "git@github.com:team/repo.git",
    ":ext:kim@cvs.corp.invalid:/root",
    "mailto:kim@corp.invalid",
    "ssl:perforce.corp.invalid:1666",
    "https://[::1]:8080/a@b",
    "https://proxy.corp.invalid:3128/x@y",
    "https://conda.corp.invalid/main,https://conda.corp.invalid/forge",
    "https://pypi.corp.invalid/simple?index=1&key=a",
    "-Xmx1g -XX:+UseG1GC -Dfile.encoding=UTF-8 -Djavax.net.ssl.trustStore=/etc/ssl/corp.jks",
    "-Dmail.smtp.auth=true -Dhttp.auth=basic -Djdk.http.auth.tunneling.disabledSchemes=",
    "-Djava.security.auth.login.config=/etc/jaas.conf -Dcom.sun.management.jmxremote.password.file=/etc/x",
    "-O2 -g -DNDEBUG -DVERSION=\\\"1.2.3\\\" -I/opt/corp/include",
    "-var=region=eu -var=password=$DB_PASSWORD",
    "--no-password --header-lines 3 --token-limit=5",
    "always-auth=true",
    "--bind 'ctrl-y:execute-silent(echo {})' --header 'Press x' --color=hl:-1",
    "*.key=01;31:*.pat=00;31:ex=01;32:di=01;34",
    "mt=01;31:sl=:cx=",
    "PWD=/work OLDPWD=/tmp",
    "<CycloneDDS><Domain><General><Interfaces><NetworkInterface \
        name=\"lo\"/></Interfaces></General></Domain></CycloneDDS>",
    "gcc/13:vivado/2024.1:token/1.0",
    "docker run -u 1000:1000 image",
    "[%f/%t] ",
    "a basic tool for testing, version 2024.1.0-rc.1+build.5",
    "ACCOUNT_KEY:abc",
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJJakFOQmdrcQotLS0tLUVORCBDRVJUSUZJQ0FURS0tLS0tCg==",
    "/usr/lib/jvm/java-21-openjdk-amd64/lib/security/cacerts/passwords",
];

#[test]
fn a_secret_is_known_in_each_document_and_address_in_base64_too_and_what_tools_need_is_none() {
    for secret in SECRETS {
        assert!(is_secret_value(secret.as_bytes()), "{secret}");
        assert!(is_secret_value(base64(secret.as_bytes()).as_bytes()), "in base64: {secret}");
        if secret.contains("hunter22") && !secret.contains("KEY-----") && !secret.starts_with("hvs.") {
            assert!(
                password(secret.as_bytes()).is_some_and(|part| find(part, b"hunter22").is_some())
                    || secret.contains("Root;"),
                "{secret}"
            );
        }
    }
    for plain in PLAIN {
        assert!(
            !is_secret_value(plain.as_bytes()),
            "{plain}: {:?}",
            password(plain.as_bytes()).map(String::from_utf8_lossy)
        );
    }
}

#[test]
fn the_first_of_several_passwords_is_told() {
    assert_eq!(password(b"password=hunter22 http://a:other@h"), Some(&b"hunter22"[..]));
    assert_eq!(password(b"http://a:other@h password=hunter22"), Some(&b"other"[..]));
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |group: &[u8]| {
        let bits = (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(*group.get(at).unwrap_or(&0)));
        let letter = |at: usize| ALPHABET[(bits >> (18 - 6 * at) & 63) as usize] as char;
        (0..4).map(|at| if at <= group.len() { letter(at) } else { '=' }).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}
