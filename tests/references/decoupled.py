"""The optimizers of normscope.decoupled, written plainly in the original coordinates."""

import numpy as np


def gdnp_least_squares(second, mean, start, steps):
    """Gradient descent on rho with the article's step; rho before each step."""
    largest, w, quotients = np.linalg.eigvalsh(second)[-1], start, []
    for _ in range(steps):
        square, overlap = w @ second @ w, mean @ w
        quotients.append(-(overlap**2) / square)
        gradient = -2 * overlap / square * (mean - overlap / square * (second @ w))
        w = w - square / (2 * largest * abs(quotients[-1])) * gradient
    return np.array(quotients)


def descent(second, mean, start, steps, rate):
    """Plain gradient descent; the points before each step."""
    w, points = start, []
    for _ in range(steps):
        points.append(w)
        w = w - rate * 2 * (second @ w + mean)
    return np.array(points)


def normalized_descent(second, mean, start, steps, rate):
    """Gradient descent on (w, gamma) from the start's own length; w_tilde before each step."""
    w, gamma, points = start, np.sqrt(start @ second @ start), []
    for _ in range(steps):
        norm = np.sqrt(w @ second @ w)
        points.append(gamma * w / norm)
        turn = 2 * gamma / norm * (mean - (mean @ w) / norm**2 * (second @ w))
        along = 2 * (mean @ w / norm + gamma)
        w, gamma = w - rate * turn, gamma - rate * along
    return np.array(points)


def accelerated(second, mean, start, steps, rate):
    """Nesterov's method for strongly convex functions; the points before each step."""
    eigenvalues = np.linalg.eigvalsh(second)
    root = np.sqrt(eigenvalues[-1] / eigenvalues[0])
    momentum = (root - 1) / (root + 1)
    w = before = start
    points = []
    for _ in range(steps):
        points.append(w)
        ahead = w + momentum * (w - before)
        w, before = ahead - rate * 2 * (second @ ahead + mean), w
    return np.array(points)


def logistic_sum(inputs, signs, weights, intercept=0.0):
    """Mean logistic loss, straight from its definition."""
    return np.log1p(np.exp(-signs * (inputs @ weights + intercept))).mean()


def gaussian_halfspace(scale=1.0, size=9, samples=600, seed=0):
    """Inputs with Gaussian z = -yx that cannot be separated, and labels."""
    random = np.random.default_rng(seed)
    z = random.standard_normal((samples, size)) * np.geomspace(1, 4, size)
    z += 0.3 * random.standard_normal(size)
    z = z @ np.linalg.qr(random.standard_normal((size, size)))[0]
    signs = np.where(np.arange(samples) % 2 == 0, 1.0, -1.0)
    return -signs[:, None] * z * scale, signs
