<?php
// Asks doclock, right before the application saves, whether the user who sends the request
// still holds the lock of the document.
//
// On the command line it prints the answer: COOKIE=… php confirm.php URL ROOM [TOKEN [CLIENT]]

declare(strict_types=1);

/**
 * Returns how many milliseconds the lock certainly stays valid, or 0 if it is not the user's:
 * then do not save. Throws if doclock does not answer. $base is doclock's address, $token that
 * of the lock, $client the X-Lock-Client of the request that took it (of locks.js: lease.client).
 * Without a token, it does not matter whether the user has lost the lock in between and taken it again.
 */
function doclock_confirm(string $base, string $room, ?int $token = null, string $client = '', ?string $cookies = null): int
{
    preg_match('/(?:^|;\s*)(doclock_session=[^;]*)/', $cookies ?? $_SERVER['HTTP_COOKIE'] ?? '', $session);
    $headers = ['Cookie: ' . ($session[1] ?? '')];
    if (preg_match('/^[A-Za-z0-9_-]+$/D', $client)) {
        $headers[] = 'X-Lock-Client: ' . $client;
    }
    $body = file_get_contents(
        "$base/api/documents/" . rawurlencode($room) . "/lock/confirm" . ($token === null ? '' : "?token=$token"),
        context: stream_context_create(['http' => ['header' => $headers, 'timeout' => 8, 'ignore_errors' => true, 'follow_location' => 0]]),
    );
    $answer = json_decode((string) $body, true);
    if (!isset($answer['success']) || ($answer['error'] ?? '') === 'unavailable') {
        throw new RuntimeException('doclock does not answer');
    }

    return $answer['valid_for_ms'] ?? 0;
}

if (PHP_SAPI === 'cli' && realpath($argv[0] ?? '') === __FILE__) {
    $token = ($argv[3] ?? '') === '' ? null : (int) $argv[3];
    echo doclock_confirm($argv[1], $argv[2], $token, $argv[4] ?? '', getenv('COOKIE')), "\n";
}
