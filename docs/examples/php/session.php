<?php
// Makes the session of a signed-in user for doclock, and sets it as the cookie
// doclock_session. In Laravel, call it after the login, and leave the cookie out of
// EncryptCookies: $middleware->encryptCookies(except: ['doclock_session']).
//
// On the command line it prints the cookie: SESSION_SECRET=… php session.php ID [NAME [USER]]

declare(strict_types=1);

/**
 * The cookie's value for a user's id, such as an e-mail address, and display name. $user is the id
 * that others see in events, often the same as $id. '' publishes no name or no id.
 */
function doclock_session(string $secret, string $id, string $name = '', string $user = ''): string
{
    if ($id === '') {
        throw new InvalidArgumentException('the id is empty');
    }
    $id = str_replace('.', '%2E', rawurlencode($id));
    $base64 = fn (string $bytes): string => rtrim(strtr(base64_encode($bytes), '+/', '-_'), '=');
    $signed = rtrim(implode('.', ['v1', $id, (string) time(), $base64($name), $base64($user)]), '.');

    return $signed . '.' . $base64(hash_hmac('sha256', "doclock_session\n" . $signed, $secret, true));
}

/**
 * Sets the cookie. If doclock is on another host, such as locks.example.com, $domain is the
 * domain of both, example.com.
 */
function set_doclock_session(string $secret, string $id, string $name = '', string $domain = '', string $user = ''): void
{
    set_doclock_cookie(doclock_session($secret, $id, $name, $user), $domain);
}

/** Deletes the cookie when the user signs out; $domain is that of set_doclock_session. */
function clear_doclock_session(string $domain = ''): void
{
    set_doclock_cookie('', $domain);
}

function set_doclock_cookie(string $value, string $domain): void
{
    setrawcookie('doclock_session', $value, doclock_cookie_options($value, $domain));
}

/** A browser keeps a secure cookie only over https, to this server or to the proxy in front. */
function doclock_cookie_options(string $value, string $domain): array
{
    $scheme = trim(explode(',', $_SERVER['HTTP_X_FORWARDED_PROTO'] ?? '')[0]);
    $secure = !in_array(strtolower($_SERVER['HTTPS'] ?? ''), ['', 'off'], true) || strtolower($scheme) === 'https';

    return [
        'expires' => $value === '' ? 1 : time() + 30 * 24 * 60 * 60,
        'path' => '/', 'domain' => $domain, 'secure' => $secure, 'httponly' => true, 'samesite' => 'Lax',
    ];
}

if (PHP_SAPI === 'cli' && realpath($argv[0] ?? '') === __FILE__) {
    echo 'doclock_session=', doclock_session(getenv('SESSION_SECRET'), $argv[1] ?? '', $argv[2] ?? '', $argv[3] ?? ''), "\n";
}
